package ratelimit

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"
)

// Register registers the handlers of a struct whose fields say where they
// belong and what limits them:
//
//	type API struct {
//		_      struct{}        `ratelimit:"100/minute"` // for all that say nothing
//		Login  gin.HandlerFunc `route:"POST /login" ratelimit:"5/minute by ip"`
//		Search gin.HandlerFunc `route:"GET /search"`
//		Health gin.HandlerFunc `route:"GET /healthz" ratelimit:"-"`
//	}
//	err := limits.Register(router, &API{Login: login, Search: search, Health: health})
//
// A rule is read as [ParseRule] does and "-" is "off". The tag of a blank field
// is the rule of all fields of the struct that have none, that of an embedded
// struct the rule of its fields; without any the limiter's default holds, or a
// row of [WithRoutes]. Every registered handler has the limiter before it, as
// with [Limiter.Annotate].
//
// The error joins every fault with the struct and field it is in, and then
// nothing has been registered: a malformed or unknown tag, a nil handler, a
// route twice, a rule that cannot be enforced. What Gin refuses, such as a
// route it has already, panics in Gin as always.
func (l *Limiter) Register(router gin.IRoutes, api any) error {
	g, ok := router.(groupRouter)
	if !ok {
		return fmt.Errorf("ratelimit: Register: routes cannot be registered on a %T; use an engine or a group", router)
	}
	v := reflect.ValueOf(api)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return fmt.Errorf("ratelimit: Register: %s is not a pointer to a struct", describe(v))
	}
	s := &structRoutes{limiter: l, router: g, seen: map[route]string{}}
	s.read(v.Elem(), "")
	if err := l.addRules(s.rules, s.faults...); err != nil {
		return err
	}
	for _, h := range s.handlers {
		g.Handle(h.method, h.relative, l.handle, h.handler)
	}
	return nil
}

func describe(v reflect.Value) string {
	if !v.IsValid() {
		return "nil"
	}
	if v.Kind() == reflect.Pointer && v.IsNil() {
		return "a nil " + v.Type().String()
	}
	return "a " + v.Type().String()
}

// structRoutes is what the tags of a struct say.
type structRoutes struct {
	limiter  *Limiter
	router   groupRouter
	handlers []structHandler
	rules    []routeRule
	seen     map[route]string // the field
	faults   []error
}

type structHandler struct {
	route
	relative string // the pattern below the router
	handler  gin.HandlerFunc
}

const (
	tagRoute = "route"
	tagRule  = "ratelimit"
)

// read reads the fields of v, whose rule is inherited where they have none.
func (s *structRoutes) read(v reflect.Value, inherited string) {
	t := v.Type()
	tags := make([]map[string]string, t.NumField())
	given := false
	for i := range tags {
		f := t.Field(i)
		var err error
		if tags[i], err = readTag(f.Tag); err != nil {
			s.fault(t, f, "%w", err)
			continue
		}
		rule, has := tags[i][tagRule]
		switch {
		case !has || f.Name != "_":
		case given:
			s.fault(t, f, "a blank field has the rule of this struct already; keep one of the two")
		case s.check(t, f, rule):
			inherited, given = rule, true
		}
	}
	for i := range tags {
		f := t.Field(i)
		where, hasRoute := tags[i][tagRoute]
		rule, hasRule := tags[i][tagRule]
		switch {
		case tags[i] == nil || f.Name == "_" && !hasRoute:
		case hasRoute:
			if !hasRule {
				rule, hasRule = inherited, inherited != ""
			}
			s.field(t, f, v.Field(i), where, rule, hasRule)
		case f.Anonymous && structOf(f.Type) != nil:
			if !hasRule {
				rule = inherited
			} else if !s.check(t, f, rule) {
				continue
			}
			if embedded := reflect.Indirect(v.Field(i)); embedded.IsValid() {
				s.read(embedded, rule)
			} else if hasRule || hasRoutes(structOf(f.Type)) {
				s.fault(t, f, "the embedded struct is nil")
			}
		case hasRule:
			s.fault(t, f, `there is a rule but no route; add route:"GET /path"`)
		}
	}
}

// check reads a rule that fields may inherit, which is wrong once and not once
// for each of them.
func (s *structRoutes) check(t reflect.Type, f reflect.StructField, text string) bool {
	_, err := s.limiter.readRule(ruleOfTag(text), "", sourceAnnotation)
	if err != nil {
		s.fault(t, f, "rule %q: %w", text, err)
	}
	return err == nil
}

// field reads one handler.
func (s *structRoutes) field(t reflect.Type, f reflect.StructField, v reflect.Value, where, rule string, hasRule bool) {
	before := len(s.faults)
	to, below, err := parseRoute(where)
	switch {
	case err != nil:
		s.fault(t, f, "route %q: %w", where, err)
	case to.method == "" || below:
		s.fault(t, f, `route %q: a handler needs one method and one pattern, as in "POST /login"`, where)
	}
	handlerType := reflect.TypeFor[gin.HandlerFunc]()
	switch {
	case !f.IsExported():
		s.fault(t, f, "the field is not exported, so that its handler cannot be read")
	case !f.Type.ConvertibleTo(handlerType):
		s.fault(t, f, "a %s is no handler; use gin.HandlerFunc", f.Type)
	case v.IsNil():
		s.fault(t, f, "the handler is nil")
	}
	if len(s.faults) > before {
		return
	}
	h := structHandler{route{to.method, s.router.Group(to.pattern).BasePath()}, to.pattern, v.Convert(handlerType).Interface().(gin.HandlerFunc)}
	if other, twice := s.seen[h.route]; twice {
		s.fault(t, f, "%s is the route of %s already", h.route, other)
		return
	}
	s.seen[h.route] = fieldName(t, f)
	s.handlers = append(s.handlers, h)
	if !hasRule {
		return
	}
	rules, err := s.limiter.annotation([]string{h.method}, h.pattern, ruleOfTag(rule))
	if err != nil {
		s.fault(t, f, "%s", strings.TrimPrefix(err.Error(), "ratelimit: "))
		return
	}
	rules[0].rule.field = fieldName(t, f) + ": "
	s.rules = append(s.rules, rules...)
}

func (s *structRoutes) fault(t reflect.Type, f reflect.StructField, format string, args ...any) {
	s.faults = append(s.faults, fmt.Errorf("ratelimit: "+fieldName(t, f)+": "+format, args...))
}

func fieldName(t reflect.Type, f reflect.StructField) string {
	name := t.Name()
	if name == "" {
		name = "struct"
	}
	return name + "." + f.Name
}

// structOf returns t, or what it points to, if that is a struct.
func structOf(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() == reflect.Struct {
		return t
	}
	return nil
}

func hasRoutes(t reflect.Type) bool {
	for i := range t.NumField() {
		if _, ok := t.Field(i).Tag.Lookup(tagRoute); ok {
			return true
		}
	}
	return false
}

func ruleOfTag(text string) string {
	if text == "-" {
		return ruleOff
	}
	return text
}

// readTag returns the pairs of a struct tag. What reflect would ignore without
// a word is an error: a tag out of form, and one that is nearly ours.
func readTag(tag reflect.StructTag) (map[string]string, error) {
	pairs := map[string]string{}
	for rest := strings.TrimLeft(string(tag), " "); rest != ""; rest = strings.TrimLeft(rest, " ") {
		name, quoted, _ := strings.Cut(rest, ":")
		prefix, err := strconv.QuotedPrefix(quoted)
		if err != nil || !strings.HasPrefix(quoted, `"`) || name == "" || strings.ContainsFunc(name, notInTagName) {
			return nil, fmt.Errorf("the tag %q is not of the form name:\"value\" at %q", tag, rest)
		}
		value, _ := strconv.Unquote(prefix)
		rest = quoted[len(prefix):]
		if _, twice := pairs[name]; twice {
			return nil, fmt.Errorf("the tag %q has %s twice", tag, name)
		}
		pairs[name] = value
		if name == tagRoute || name == tagRule {
			continue
		}
		if near := didYouMean(strings.ToLower(name), []string{tagRoute, tagRule}); near != "" {
			return nil, fmt.Errorf("unknown tag %q%s", name, near)
		}
	}
	return pairs, nil
}

// notInTagName is where reflect ends the name of a tag.
func notInTagName(r rune) bool { return r <= ' ' || r == '"' || r == 0x7f }
