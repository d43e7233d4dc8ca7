package ratelimit

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// A Rule is a limit as it stands beside a route, a line that can be read
// aloud: see [ParseRule]. Give it to [WithRoutes], [Limiter.Annotate] or
// [Limiter.Register] as text; the type is for those who check or keep rules of
// their own. The zero Rule says nothing and is refused wherever one is taken.
type Rule struct {
	off       bool
	limits    []Limit
	key       *keySpec   // nil: the limiter's
	algorithm *Algorithm // nil: the limiter's
	cost      int        // 0: the limiter's
	as        string     // "": a budget of its own
	dryRun    bool
}

// ParseRule reads a rule: one or more limits as [ParseLimit] reads them, then
// in any order what is to differ from the limiter's options, each at most once.
//
//	5/minute
//	10/second, 1000/hour by header:X-API-Key
//	20/s burst 40 using token-bucket cost 5
//	5/minute by ip as login
//	off
//
//	rule   = "off" | limits { clause }
//	limits = limit { "," limit }
//	clause = "by" key | "using" algorithm | "cost" N | "as" name | "dry-run"
//	key    = ip | header:NAME | user:CONTEXTKEY | cookie:NAME | query:NAME |
//	         param:NAME | route | global, joined with "+"
//
// The keys are those of [KeyByIP], [KeyByHeader] and their kin, "+" is
// [JoinKeys], and the algorithms are named as [Algorithm] prints them. "as"
// makes all rules of one name share one budget; "dry-run" is [WithDryRun] for
// this rule; "off" exempts from this limiter.
//
// Spaces do not matter, nor does case except in a NAME, CONTEXTKEY or name,
// which hold no blank, "+" or ",". What cannot be meant is an error that shows
// the rule and the word, and says what was expected.
func ParseRule(text string) (Rule, error) {
	r, err := parseRule(text)
	if err != nil {
		return Rule{}, fmt.Errorf("ratelimit: rule %q: %w", text, err)
	}
	return r, nil
}

// String returns r in the form [ParseRule] reads.
func (r Rule) String() string {
	if r.off {
		return ruleOff
	}
	text := limitsString(r.limits)
	if r.key != nil {
		text += " by " + r.key.String()
	}
	if r.algorithm != nil {
		text += " using " + r.algorithm.String()
	}
	if r.cost != 0 {
		text += " cost " + strconv.Itoa(r.cost)
	}
	if r.as != "" {
		text += " as " + r.as
	}
	if r.dryRun {
		text += " dry-run"
	}
	return text
}

// MarshalText returns r as [Rule.String] does, or an error for the zero Rule.
func (r Rule) MarshalText() ([]byte, error) {
	if !r.off && len(r.limits) == 0 {
		return nil, fmt.Errorf("ratelimit: %w", errRuleEmpty)
	}
	return []byte(r.String()), nil
}

// UnmarshalText reads what [ParseRule] reads, so that rules can stand in JSON,
// YAML, TOML and flags.
func (r *Rule) UnmarshalText(text []byte) error {
	parsed, err := ParseRule(string(text))
	if err != nil {
		return err
	}
	*r = parsed
	return nil
}

const ruleOff = "off"

var (
	errRuleEmpty = errors.New(`the rule is empty; write limits like "5/minute by ip", or "off"`)
	errOffAlone  = errors.New(`"off" stands alone`)
)

// The words that begin a clause.
var clauseWords = []string{"by", "using", "cost", "as", "dry-run"}

func isClauseWord(word string) bool { return slices.Contains(clauseWords, strings.ToLower(word)) }

func parseRule(text string) (r Rule, err error) {
	words := ruleWords{rest: text}
	switch first := strings.ToLower(words.peek(",/")); {
	case first == "":
		return r, errRuleEmpty
	case first == ruleOff:
		words.next(",/")
		if words.peek("") != "" {
			return r, errOffAlone
		}
		return Rule{off: true}, nil
	case isClauseWord(first):
		return r, fmt.Errorf(`no limit before %q; %s`, first, limitForm)
	case !strings.ContainsAny(first, "0123456789,/"):
		return r, fmt.Errorf(`%q is no limit (%s) and not "off", which exempts a route`, first, limitForm)
	}
	if r.limits, err = words.limits(); err != nil {
		return r, err
	}
	if err = words.clauses(&r); err != nil {
		return r, err
	}
	policy := Policy{limits: r.limits}
	if r.algorithm != nil {
		policy.algorithm = *r.algorithm
	}
	if faults := policy.faults(); len(faults) > 0 {
		return r, faults[0]
	}
	return r, nil
}

// ruleWords is what is left to read of a rule.
type ruleWords struct{ rest string }

// next takes the next word, "" at the end. The separators are ASCII characters
// that are words by themselves.
func (w *ruleWords) next(separators string) string {
	w.rest = strings.TrimLeftFunc(w.rest, unicode.IsSpace)
	end := strings.IndexFunc(w.rest, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(separators, r) })
	switch end {
	case -1:
		end = len(w.rest)
	case 0:
		end = 1
	}
	word := w.rest[:end]
	w.rest = w.rest[end:]
	return word
}

func (w ruleWords) peek(separators string) string { return w.next(separators) }

// limits reads all limits.
func (w *ruleWords) limits() ([]Limit, error) {
	var limits []Limit
	for {
		words := w.limit()
		if len(words) == 0 {
			return nil, fmt.Errorf(`no limit beside a ","; %s`, limitForm)
		}
		l, err := parseLimit(words)
		if err == nil {
			err = l.validate()
		}
		if err != nil {
			return nil, err
		}
		limits = append(limits, l)
		if w.peek(",/") != "," {
			return limits, nil
		}
		w.next(",/")
	}
}

// limit takes the words of one limit, for parseLimit: a number, "/" or "per", a
// period of one word or two, "burst" and its number.
func (w *ruleWords) limit() (words []string) {
	take := func() bool {
		word := strings.ToLower(w.peek(",/"))
		if word == "" || word == "," || isClauseWord(word) {
			return false
		}
		w.next(",/")
		words = append(words, word)
		return true
	}
	most := 3
	for len(words) < most && take() {
		if len(words) == 3 && strings.Trim(words[2], "0123456789") == "" {
			most = 4 // "2 days"
		}
	}
	if strings.EqualFold(w.peek(",/"), "burst") && take() {
		take()
	}
	return words
}

// clauses reads what follows the limits into r.
func (w *ruleWords) clauses(r *Rule) error {
	var given []string
	for {
		clause := strings.ToLower(w.next(",/"))
		if clause == "" {
			return nil
		}
		if slices.Contains(given, clause) {
			return fmt.Errorf("%q is given twice", clause)
		}
		given = append(given, clause)

		var err error
		switch clause {
		case "by":
			r.key, err = w.key()
		case "using":
			r.algorithm, err = w.algorithm()
		case "cost":
			r.cost, err = parseCost(w.argument())
		case "as":
			r.as, err = w.name()
		case "dry-run":
			r.dryRun = true
		default:
			err = fmt.Errorf(`unexpected %q (use by, using, cost, as or dry-run after the limits)%s`, clause, didYouMean(clause, append([]string{"burst"}, clauseWords...)))
		}
		if err != nil {
			return err
		}
	}
}

// argument takes what a clause says, "" where another clause follows at once.
func (w *ruleWords) argument() string {
	if isClauseWord(w.peek("")) {
		return ""
	}
	return w.next("")
}

func (w *ruleWords) name() (string, error) {
	name := w.argument()
	if name == "" {
		return "", errors.New(`"as" needs a name, as in "as login"`)
	}
	return name, validateName(name)
}

func (w *ruleWords) algorithm() (*Algorithm, error) {
	name := w.argument()
	if name == "" {
		return nil, fmt.Errorf(`"using" needs an algorithm: %s`, strings.Join(algorithmNames[:], ", "))
	}
	a, err := parseAlgorithm(name)
	return &a, err
}

func parseCost(word string) (int, error) {
	n, err := strconv.ParseUint(word, 10, 31)
	switch {
	case word == "":
		return 0, errors.New(`"cost" needs a number, as in "cost 5"`)
	case errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("cost %s is too large (at most %d)", word, maxRequests)
	case err != nil:
		return 0, fmt.Errorf("cost %q is not a positive whole number", word)
	case n == 0:
		return 0, errors.New(`cost is 0, which would never count anything; write "off" to exempt a route`)
	}
	return int(n), nil
}

const keyForms = "ip, header:NAME, user:CONTEXTKEY, cookie:NAME, query:NAME, param:NAME, route or global"

// key reads a key, which may be spread over words around "+" and ":".
func (w *ruleWords) key() (*keySpec, error) {
	text := w.argument()
	if text == "" {
		return nil, fmt.Errorf(`"by" needs a key: %s`, keyForms)
	}
	for next := w.peek(""); next != ""; next = w.peek("") {
		open := strings.HasSuffix(text, "+") || strings.HasSuffix(text, ":")
		if !strings.HasPrefix(next, "+") && !strings.HasPrefix(next, ":") && (!open || isClauseWord(next)) {
			break
		}
		text += w.next("")
	}
	var parts []keySpec
	for part := range strings.SplitSeq(text, "+") {
		if part == "" {
			return nil, fmt.Errorf(`key %q has nothing on one side of a "+"`, text)
		}
		k, err := parseKey(part)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(parts, func(other keySpec) bool { return other.String() == k.String() }) {
			return nil, fmt.Errorf("key %q names %s twice", text, k)
		}
		parts = append(parts, k)
	}
	if len(parts) == 1 {
		return &parts[0], nil
	}
	return &keySpec{kind: keyJoin, parts: parts}, nil
}

func parseKey(part string) (keySpec, error) {
	word, name, named := strings.Cut(part, ":")
	kinds := keyKinds[:keyGlobal+1]
	kind := slices.Index(kinds, strings.ToLower(word))
	k := keySpec{kind: keyKind(kind), name: name}
	switch k.kind {
	case keyIP, keyRoute, keyGlobal:
		if named {
			return k, fmt.Errorf("key %q: %s takes no name", part, kinds[kind])
		}
		return k, nil
	case keyHeader:
		k.name = http.CanonicalHeaderKey(name)
	case keyUser:
		k.contextKey = name
	case keyCookie, keyQuery, keyParam:
	default:
		return k, fmt.Errorf("unknown key %q (use %s)%s", part, keyForms, didYouMean(strings.ToLower(word), kinds))
	}
	if name == "" {
		return k, fmt.Errorf("key %q needs a name, as in %q", part, map[keyKind]string{
			keyHeader: "header:X-API-Key", keyUser: "user:userID", keyCookie: "cookie:session", keyQuery: "query:token", keyParam: "param:id",
		}[k.kind])
	}
	if strings.Contains(name, ",") {
		return k, fmt.Errorf(`key %q: a name holds no ","; keys are joined with "+"`, part)
	}
	if k.kind == keyHeader && !isToken(name) || k.kind == keyCookie && !isToken(name) {
		return k, fmt.Errorf("key %q: %q is not a %s name", part, name, kinds[kind])
	}
	return k, nil
}
