package ratelimit

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
)

// Where a rule comes from; see [RouteLimit].
const (
	sourceDefault    = "default"
	sourceRow        = "row"
	sourceAnnotation = "annotation"
)

// A rule is what a limiter does with a request: its default, or a [Rule] in
// which all that was left unsaid has come from the limiter's options.
type rule struct {
	policy *Policy // nil where off
	key    keySpec
	cost   int // 0: what WithCost says
	off    bool

	text   string // as it was written; "" for the default
	where  string // "POST /login"
	as     string
	source string // see RouteLimit.Source
	ownKey bool   // the rule names its key
	field  string // "API.Login: ", if it stands there
}

// A route is what Gin tells of where a request went.
type route struct{ method, pattern string }

func (r route) String() string { return strings.TrimSpace(r.method + " " + r.pattern) }

// A routeRule is one rule and where it applies: one row of the table, or one
// method of what was annotated.
type routeRule struct {
	route // without a method: any
	below bool
	rule  *rule
}

func (r routeRule) annotated() bool { return r.rule.source == sourceAnnotation }

// matches reports whether this is a rule for a route, be there a more specific
// one or not.
func (r routeRule) matches(method, pattern string) bool {
	if r.method != "" && r.method != method {
		return false
	}
	return r.pattern == pattern || r.below && strings.HasPrefix(pattern, r.pattern)
}

// A routeTable finds the rule of a route. It does not change once made, so
// that a request needs no lock and a change is seen as a whole.
type routeTable struct {
	rules []routeRule // rows, in the order of their text, then annotations
	exact map[route]*rule
	below map[route]*rule // by what stands before the "*": "/admin/"
}

// find returns the most specific rule: exact before wildcard, longer before
// shorter, with method before without; nil where there is none. It allocates
// nothing.
func (t *routeTable) find(method, pattern string) *rule {
	if len(t.rules) == 0 {
		return nil
	}
	if r := lookUp(t.exact, method, pattern); r != nil || len(t.below) == 0 {
		return r
	}
	for end := strings.LastIndexByte(pattern, '/'); end >= 0; end = strings.LastIndexByte(pattern[:end], '/') {
		if r := lookUp(t.below, method, pattern[:end+1]); r != nil {
			return r
		}
	}
	return nil
}

func lookUp(rules map[route]*rule, method, pattern string) *rule {
	if r := rules[route{method, pattern}]; r != nil {
		return r
	}
	return rules[route{"", pattern}]
}

// newRouteTable returns a table of rules, or an error that joins every
// contradiction among them.
func newRouteTable(rules []routeRule) (*routeTable, error) {
	t := &routeTable{rules: rules, exact: map[route]*rule{}, below: map[route]*rule{}}
	var faults []error
	fault := func(err error) { // once, where one annotation is for several methods
		if n := len(faults); n == 0 || faults[n-1].Error() != err.Error() {
			faults = append(faults, err)
		}
	}
	named := map[string]*rule{}
	for _, r := range rules {
		known := t.exact
		if r.below {
			known = t.below
		}
		other := known[r.route]
		if other == nil && r.annotated() {
			other = known[route{"", r.pattern}]
		}
		switch {
		case other == nil:
			known[r.route] = r.rule
		case r.annotated() && other.source == sourceAnnotation:
			fault(r.rule.fault("the route is annotated already, with %q; keep one of the two", other.text))
		case r.annotated():
			fault(r.rule.fault("the row %q of the table has a rule for it too, %q; keep one of the two", other.where, other.text))
		default:
			fault(r.rule.fault("the table has another row for it, with %q; keep one of the two", other.text))
		}
		if as := r.rule.as; as != "" {
			if other := named[as]; other != nil && !other.same(r.rule) {
				fault(r.rule.fault("%q is %q for %s; rules that share a name must be the same", "as "+as, other.text, other.where))
			} else {
				named[as] = r.rule
			}
		}
	}
	return t, errors.Join(faults...)
}

// policies returns what the rules count under, each budget once.
func (t *routeTable) policies() (policies []*Policy) {
	seen := map[string]bool{}
	for _, r := range t.rules {
		if p := r.rule.policy; p != nil && !seen[p.name] {
			seen[p.name] = true
			policies = append(policies, p)
		}
	}
	return policies
}

func (r *rule) fault(format string, args ...any) error {
	return fmt.Errorf("ratelimit: %srule %q for %s: "+format, append([]any{r.field, r.text, r.where}, args...)...)
}

func ruleFault(text, where string, err error) error {
	return (&rule{text: text, where: where}).fault("%w", err)
}

// same reports whether r and o can share a budget.
func (r *rule) same(o *rule) bool {
	return r.policy.String() == o.policy.String() && r.policy.dryRun == o.policy.dryRun &&
		r.key.String() == o.key.String() && r.cost == o.cost
}

// resolve adds the limiter's options to what a rule says.
//
// The budget is named after the limiter and the route, in a form that no name
// of a limiter, no "as" and no dry run can have: names hold no blank, methods
// are in capitals and patterns begin with "/".
func (c *config) resolve(r Rule, text, where, source string) (*rule, error) {
	out := &rule{key: c.key, cost: r.cost, off: r.off, text: text, where: where, as: r.as, source: source}
	if r.key != nil {
		out.key, out.ownKey = *r.key, true
	}
	if r.off {
		return out, nil
	}
	algorithm := c.algorithm
	if r.algorithm != nil {
		algorithm = *r.algorithm
	}
	budget := c.policyName()
	if r.dryRun {
		budget += " dry-run"
	}
	if r.as != "" {
		budget += " as " + r.as
	} else {
		budget += " " + where
	}
	policy, faults := newPolicy(budget, algorithm, r.limits)
	if len(faults) > 0 {
		return nil, faults[0]
	}
	for _, l := range r.limits {
		if l.Burst != 0 && algorithm != TokenBucket {
			return nil, fmt.Errorf(`a burst means nothing to %s; add "using %s", or leave it out`, algorithm, TokenBucket)
		}
	}
	if r.cost > policy.maxCost {
		result, _ := policy.tooMuch(r.cost)
		return nil, fmt.Errorf("cost %d is more than %s ever admits at once", r.cost, result.Limit)
	}
	if err := c.checkRoom(r.limits); err != nil {
		return nil, err
	}
	policy.dryRun = c.dryRun || r.dryRun
	out.policy = policy
	return out, nil
}

// rows reads a table of routes.
func (c *config) rows(table map[string]string) ([]routeRule, error) {
	var rows []routeRule
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(table)) {
		where, below, err := parseRoute(name)
		if err != nil {
			faults = append(faults, fmt.Errorf("ratelimit: route %q: %w", name, err))
			continue
		}
		label, text := where.String(), table[name]
		if below {
			label += "*"
		}
		r, err := c.readRule(text, label, sourceRow)
		if err == nil && !below {
			err = r.checkParams(where.pattern)
		}
		if err != nil {
			faults = append(faults, ruleFault(text, label, err))
			continue
		}
		where.pattern = served(where.pattern)
		rows = append(rows, routeRule{where, below, r})
	}
	return rows, errors.Join(faults...)
}

func (c *config) readRule(text, where, source string) (*rule, error) {
	parsed, err := parseRule(text)
	if err != nil {
		return nil, err
	}
	return c.resolve(parsed, text, where, source)
}

var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
	http.MethodConnect, http.MethodOptions, http.MethodTrace,
}

// parseRoute reads "POST /login", "/search" or "/admin/*"; of the last it
// returns the pattern without the "*".
func parseRoute(text string) (r route, below bool, err error) {
	const form = `a route is written like "POST /login", "/search" or "/admin/*"`
	words := strings.Fields(text)
	switch len(words) {
	case 1:
		r.pattern = words[0]
	case 2:
		r.method, r.pattern = strings.ToUpper(words[0]), words[1]
		if !slices.Contains(methods, r.method) {
			return r, false, fmt.Errorf("unknown method %q (use %s, or none for any)%s", words[0], strings.Join(methods, ", "), didYouMean(r.method, methods))
		}
	default:
		return r, false, errors.New(form)
	}
	if r.pattern[0] != '/' {
		return r, false, fmt.Errorf(`the pattern %q does not begin with "/"; %s`, r.pattern, form)
	}
	if strings.HasSuffix(r.pattern, "*") {
		below = true
		r.pattern = r.pattern[:len(r.pattern)-1]
		if !strings.HasSuffix(r.pattern, "/") {
			return r, false, fmt.Errorf(`a "*" stands for all that is below a "/"; did you mean %q?`, r.pattern+"/*")
		}
	}
	clean := path.Clean(r.pattern)
	if strings.HasSuffix(r.pattern, "/") && clean != "/" {
		clean += "/"
	}
	if clean != r.pattern {
		return r, false, fmt.Errorf("no pattern in Gin is spelled %q; did you mean %q?", r.pattern, clean)
	}
	return r, below, nil
}

// checkParams reports a key that the routes of pattern do not have.
func (r *rule) checkParams(pattern string) error {
	if !r.ownKey {
		return nil
	}
	has := paramsOf(pattern)
	for _, name := range r.key.params() {
		if !slices.Contains(has, name) {
			var mend string
			if len(has) > 0 {
				mend = fmt.Sprintf("; it has %q", has)
			}
			return fmt.Errorf(`the key "param:%s" needs a ":%s" in the pattern %s%s`, name, name, pattern, mend)
		}
	}
	return nil
}

// params returns the names of the route parameters in k.
func (k keySpec) params() (names []string) {
	if k.kind == keyParam {
		return []string{k.name}
	}
	for _, part := range k.parts {
		names = append(names, part.params()...)
	}
	return names
}

// served returns a pattern as requests have it ([gin.Context.FullPath]): Gin
// takes the backslash away that makes a colon no parameter, and from the
// patterns of [gin.Engine.Routes] too, but only with the first request.
func served(pattern string) string { return strings.ReplaceAll(pattern, `\:`, ":") }

// paramsOf returns the parameters of a Gin pattern: what follows a ":" or a "*"
// up to the next "/". A "\:" is a colon.
func paramsOf(pattern string) (names []string) {
	for segment := range strings.SplitSeq(pattern, "/") {
		segment = strings.ReplaceAll(segment, `\:`, "")
		if i := strings.IndexAny(segment, ":*"); i >= 0 {
			names = append(names, segment[i+1:])
		}
	}
	return names
}

// SetRoutes replaces the table of [WithRoutes] while the limiter serves; rules
// of [Limiter.Annotate] and [Limiter.Register] stay as they are. It checks the
// whole table first: on an error, which joins every fault, nothing has changed.
//
// Each request is decided by the old table or by the new one, never by a
// mixture. A row that stays keeps its counts. One whose limits changed keeps
// them as far as the algorithm and a period are the same, and a burst above the
// number of requests.
func (l *Limiter) SetRoutes(table map[string]string) error {
	rows, err := l.rows(table)
	l.edit.Lock()
	defer l.edit.Unlock()
	for _, r := range l.routes.Load().rules {
		if r.annotated() {
			rows = append(rows, r)
		}
	}
	return l.setRules(rows, err)
}

// annotate gives one rule to a pattern under each of methods.
func (l *Limiter) annotate(methods []string, pattern, text string) error {
	added, err := l.annotation(methods, pattern, text)
	if err != nil {
		return err
	}
	return l.addRules(added)
}

func (l *Limiter) annotation(methods []string, pattern, text string) ([]routeRule, error) {
	label := labelOf(methods, pattern)
	r, err := l.readRule(text, label, sourceAnnotation)
	if err == nil {
		err = r.checkParams(pattern)
	}
	if err != nil {
		return nil, ruleFault(text, label, err)
	}
	var rules []routeRule
	for _, method := range methods {
		rules = append(rules, routeRule{route{method, served(pattern)}, false, r})
	}
	return rules, nil
}

// addRules adds the rules of routes that are being registered. A route that
// has the very rule already is another engine's: Gin takes it only once on
// each. Where there are faults already it only adds to these.
func (l *Limiter) addRules(added []routeRule, faults ...error) error {
	l.edit.Lock()
	defer l.edit.Unlock()
	rules := slices.Clone(l.routes.Load().rules)
	for _, r := range added {
		if !slices.ContainsFunc(rules, func(o routeRule) bool {
			return o.route == r.route && o.annotated() && o.rule.text == r.rule.text
		}) {
			rules = append(rules, r)
		}
	}
	return l.setRules(rules, faults...)
}

func (l *Limiter) setRules(rules []routeRule, faults ...error) error {
	t, err := newRouteTable(rules)
	if err := errors.Join(append(faults, err)...); err != nil {
		return err
	}
	l.routes.Store(t)
	return nil
}
