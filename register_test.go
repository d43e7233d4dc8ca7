package ratelimit_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/aed328ba/ratelimit"
	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type reports struct {
	List  gin.HandlerFunc    `route:"GET /reports"`
	Build func(*gin.Context) `json:"-" route:"POST /reports/:id" ratelimit:"2/minute by param:id"`
}

type Public struct {
	Home gin.HandlerFunc `route:"GET /"`
}

type Inner struct {
	_    struct{}        `ratelimit:"6/minute"`
	Deep gin.HandlerFunc `route:"GET /deep"`
}

type API struct {
	Login  gin.HandlerFunc `route:"POST /login" ratelimit:"5/minute by ip"`
	Search gin.HandlerFunc `route:"GET /search"`
	Health gin.HandlerFunc `route:"get /healthz" ratelimit:"-"`
	Unused gin.HandlerFunc
	reports
	Public  `ratelimit:"-"`
	*Inner  `json:"inner"`
	_       struct{} `ratelimit:"50/minute"`
	Version string   `json:"version"`
}

func TestAStructSaysInTagsWhereItsHandlersBelongAndWhatLimitsThem(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)))
	r := gin.New()
	api := &API{Login: ok, Search: ok, Health: ok, reports: reports{List: ok, Build: ok}, Public: Public{Home: ok}, Inner: &Inner{Deep: ok}}
	require.NoError(t, l.Register(r.Group("/v1"), api))
	require.NoError(t, l.Verify(r))
	for request, want := range map[string]string{
		"POST /v1/login": "5", "GET /v1/search": "50", "GET /v1/healthz": "", "GET /v1/reports": "50",
		"POST /v1/reports/1": "2", "POST /v1/reports/2": "2", "GET /v1/": "", "GET /v1/deep": "6",
	} {
		assert.Equal(t, want, limitOf(r, request), request)
	}
	assert.Equal(t, 200, send(r, "POST", "/v1/reports/1").StatusCode)
	assert.Equal(t, 429, send(r, "POST", "/v1/reports/1").StatusCode, "by parameter")
	assert.Len(t, r.Routes(), 7)
}

func TestAHandlerWithoutARuleHasTheDefaultOrARowOfTheTable(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithRoutes(map[string]string{"GET /a": "7/minute"}))
	r := gin.New()
	require.NoError(t, l.Register(r, &struct {
		A gin.HandlerFunc `route:"GET /a"`
		B gin.HandlerFunc `route:"GET /b"`
	}{ok, ok}))
	assert.Equal(t, "7", limitOf(r, "GET /a"))
	assert.Equal(t, "100", limitOf(r, "GET /b"), "never unlimited, though no middleware stands before it")
}

type Faulty struct {
	_        struct{}        `ratelimit:"5/fortnight"`
	_        struct{}        `ratelimit:"5/minute"`
	_        struct{}        `ratelimit:"6/minute"`
	Empty    gin.HandlerFunc `route:"GET /empty" ratelimit:""`
	Twice    gin.HandlerFunc `route:"GET /twice" ratelimit:"5/minute"`
	Again    gin.HandlerFunc `route:"get /twice" ratelimit:"5/minute"`
	Rule     gin.HandlerFunc `route:"GET /rule" ratelimit:"5/minuet"`
	Param    gin.HandlerFunc `route:"GET /param" ratelimit:"5/minute by param:id"`
	Typo     gin.HandlerFunc `route:"GET /typo" ratelimt:"5/minute"`
	Case     gin.HandlerFunc `Route:"GET /case"`
	Nil      gin.HandlerFunc `route:"GET /nil"`
	NoRoute  gin.HandlerFunc `ratelimit:"5/minute"`
	NoMethod gin.HandlerFunc `route:"/any"`
	Below    gin.HandlerFunc `route:"GET /below/*"`
	Path     gin.HandlerFunc `route:"GET path"`
	Kind     string          `route:"GET /kind"`
	hidden   gin.HandlerFunc `route:"GET /hidden"`
	*Public
	Embedded
	Misruled `ratelimit:"5/minuet"`
	Tabled   gin.HandlerFunc `route:"GET /tabled" ratelimit:"5/minute"`
}

type Embedded struct {
	Nil gin.HandlerFunc `route:"GET /embedded"`
}

type Misruled struct {
	Handler gin.HandlerFunc `route:"GET /misruled"`
}

// What is embedded without a route may be anything.
type Embedding struct {
	fmt.Stringer
	*Plain
	Home gin.HandlerFunc `route:"GET /"`
}

type Plain struct{ Name string }

func TestWhatIsEmbeddedWithoutARouteIsLeftAlone(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)))
	r := gin.New()
	require.NoError(t, l.Register(r, &Embedding{Home: ok}))
	assert.Len(t, r.Routes(), 1)
}

func TestRegisterReportsEveryFaultWithStructAndFieldAndThenRegistersNothing(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)), ratelimit.WithRoutes(map[string]string{"GET /tabled": "1/minute"}))
	r := gin.New()
	api := &Faulty{Empty: ok, Twice: ok, Again: ok, Rule: ok, Param: ok, Typo: ok, Case: ok, NoRoute: ok, NoMethod: ok, Below: ok, Path: ok, hidden: ok, Tabled: ok}
	assert.EqualError(t, l.Register(r, api), `ratelimit: Faulty._: rule "5/fortnight": unknown unit "fortnight" (use s, m, h or d)
ratelimit: Faulty._: a blank field has the rule of this struct already; keep one of the two
ratelimit: Faulty.Typo: unknown tag "ratelimt"; did you mean "ratelimit"?
ratelimit: Faulty.Case: unknown tag "Route"; did you mean "route"?
ratelimit: Faulty.Empty: rule "" for GET /empty: the rule is empty; write limits like "5/minute by ip", or "off"
ratelimit: Faulty.Again: GET /twice is the route of Faulty.Twice already
ratelimit: Faulty.Rule: rule "5/minuet" for GET /rule: unknown unit "minuet" (use s, m, h or d); did you mean "minute"?
ratelimit: Faulty.Param: rule "5/minute by param:id" for GET /param: the key "param:id" needs a ":id" in the pattern /param
ratelimit: Faulty.Nil: the handler is nil
ratelimit: Faulty.NoRoute: there is a rule but no route; add route:"GET /path"
ratelimit: Faulty.NoMethod: route "/any": a handler needs one method and one pattern, as in "POST /login"
ratelimit: Faulty.Below: route "GET /below/*": a handler needs one method and one pattern, as in "POST /login"
ratelimit: Faulty.Path: route "GET path": the pattern "path" does not begin with "/"; a route is written like "POST /login", "/search" or "/admin/*"
ratelimit: Faulty.Kind: a string is no handler; use gin.HandlerFunc
ratelimit: Faulty.hidden: the field is not exported, so that its handler cannot be read
ratelimit: Faulty.Public: the embedded struct is nil
ratelimit: Embedded.Nil: the handler is nil
ratelimit: Faulty.Misruled: rule "5/minuet": unknown unit "minuet" (use s, m, h or d); did you mean "minute"?
ratelimit: Faulty.Tabled: rule "5/minute" for GET /tabled: the row "GET /tabled" of the table has a rule for it too, "1/minute"; keep one of the two`)
	assert.Empty(t, r.Routes())
	require.NoError(t, l.Verify(routed(l, "GET /tabled")), "nor has any rule been kept")
}

func TestRegisterTakesARouterAndAPointerToAStruct(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)))
	type empty struct{}
	for want, arguments := range map[string][2]any{
		"nil is not a pointer to a struct":                                                      {gin.New(), nil},
		"a ratelimit_test.empty is not a pointer to a struct":                                   {gin.New(), empty{}},
		"a nil *ratelimit_test.empty is not a pointer to a struct":                              {gin.New(), (*empty)(nil)},
		"routes cannot be registered on a ratelimit_test.otherRouter; use an engine or a group": {otherRouter{}, &empty{}},
		"routes cannot be registered on a *ratelimit.annotated; use an engine or a group":       {l.Annotate(gin.New(), "off"), &empty{}},
	} {
		assert.EqualError(t, l.Register(arguments[0].(gin.IRoutes), arguments[1]), "ratelimit: Register: "+want)
	}
	assert.NoError(t, l.Register(gin.New(), &empty{}))
}

func TestATagThatReflectWouldIgnoreIsAFault(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)))
	for tag, at := range map[reflect.StructTag]string{
		`route: "GET /a"`:                   `route: "GET /a"`,
		`json:"a" route`:                    `route`,
		`route:GET`:                         `route:GET`,
		`route:"GET /a" ratelimit='5/m'`:    `ratelimit='5/m'`,
		`route:"GET /a",ratelimit:"5/m"`:    `ratelimit: struct.A: unknown tag ",ratelimit"; did you mean "ratelimit"?`,
		`route:"GET /a" route:"GET /b"`:     `ratelimit: struct.A: the tag "route:\"GET /a\" route:\"GET /b\"" has route twice`,
		"route:`GET /a`":                    "route:`GET /a`",
		`route:"GET /a" rate limit:"5/min"`: `rate limit:"5/min"`,
	} {
		type field = reflect.StructField
		api := reflect.New(reflect.StructOf([]field{{Name: "A", Type: reflect.TypeFor[gin.HandlerFunc](), Tag: tag}}))
		api.Elem().Field(0).Set(reflect.ValueOf(gin.HandlerFunc(ok)))
		err := l.Register(gin.New(), api.Interface())
		if !strings.HasPrefix(at, "ratelimit: ") {
			at = fmt.Sprintf("ratelimit: struct.A: the tag %q is not of the form name:\"value\" at %q", tag, at)
		}
		assert.EqualError(t, err, at)
	}
}

func TestAStructIsRegisteredOnSeveralEngines(t *testing.T) {
	l, _ := limited(t, ratelimit.WithLimit(ratelimit.PerMinute(100)))
	for range 2 {
		r := gin.New()
		require.NoError(t, l.Register(r, &reports{List: ok, Build: ok}))
		assert.Equal(t, "2", limitOf(r, "POST /reports/1"))
	}
}
