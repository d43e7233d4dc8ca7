package ratelimit

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/gin-gonic/gin"
)

// Verify reports every rule that matches no registered route, and every row
// ending in "*" whose key needs a parameter that one of its routes lacks. Call
// it once all routes are registered, with each engine the limiter serves:
//
//	if err := limits.Verify(router); err != nil {
//		log.Fatal(err)
//	}
//
// The error joins all of them, each with the nearest route as a suggestion.
func (l *Limiter) Verify(engines ...*gin.Engine) error {
	var registered []route
	for _, e := range engines {
		if e == nil {
			return errors.New("ratelimit: Verify: the engine is nil")
		}
		for _, r := range e.Routes() {
			registered = append(registered, route{r.Method, r.Path})
		}
	}
	t := l.routes.Load()
	var faults []error
	matched := map[*rule]bool{}
	for _, r := range t.rules {
		for _, to := range registered {
			pattern := served(to.pattern)
			if !r.matches(to.method, pattern) {
				continue
			}
			matched[r.rule] = true
			if err := r.rule.checkParams(to.pattern); err != nil && t.find(to.method, pattern) == r.rule {
				faults = append(faults, r.rule.fault("%w", err))
			}
		}
	}
	for _, r := range t.rules {
		if matched[r.rule] {
			continue
		}
		matched[r.rule] = true // reported, if it is for several methods
		faults = append(faults, r.rule.fault("no such route is registered%s", r.nearest(registered)))
	}
	return errors.Join(faults...)
}

// nearest suggests the registered route that was meant.
func (r routeRule) nearest(registered []route) string {
	best, least := route{}, -1
	for _, to := range registered {
		if d := r.distance(to); least < 0 || d < least {
			best, least = to, d
		}
	}
	if least < 0 {
		return ", nor any other"
	}
	return fmt.Sprintf("; the nearest is %q", best)
}

func (r routeRule) distance(to route) int {
	d := patternDistance(r.pattern, to.pattern)
	for i := range to.pattern {
		if r.below && to.pattern[i] == '/' {
			d = min(d, patternDistance(r.pattern, to.pattern[:i+1]))
		}
	}
	if r.method != "" && r.method != to.method {
		d += 2
	}
	return d
}

func patternDistance(meant, pattern string) int {
	if strings.HasSuffix(pattern, meant) { // without the prefix of its group
		return 1
	}
	return 2 * editDistance(meant, pattern)
}

// A Table is what a limiter does on each registered route; see
// [Limiter.Table]. Printed, it is aligned in columns.
type Table []RouteLimit

// A RouteLimit is what a limiter does on one route.
type RouteLimit struct {
	// Method and Pattern are the route, as Gin has it.
	Method, Pattern string

	// Off is true where this limiter lets everything pass. The fields from
	// Limits to DryRun are then zero.
	Off bool

	// Limits are the limits, all of which must hold. ByFunction is true where
	// [WithLimitFunc] may choose others.
	Limits     []Limit
	ByFunction bool

	// Key is who counts as one client, as a rule writes it; "custom" is a
	// function of your own.
	Key string

	// Algorithm is how requests are counted.
	Algorithm Algorithm

	// Cost is what a request costs, 0 where the function of [WithCost] says.
	Cost int

	// Budget is the name under which requests are counted: routes of one name
	// share their counts.
	Budget string

	// DryRun is true where nothing is denied.
	DryRun bool

	// Source is where this comes from: "default", "row" and its route, or
	// "annotation", which the tag of a struct is too.
	Source string
}

// Table returns what this limiter does on each route of engine, ordered by
// pattern and method. It does not know on which of them the limiter stands in
// the chain: annotated routes have it, others where [Limiter.Middleware] was
// used.
func (l *Limiter) Table(engine *gin.Engine) Table {
	t := l.routes.Load()
	var table Table
	for _, to := range engine.Routes() {
		r := t.find(to.Method, served(to.Path))
		if r == nil {
			r = l.base
		}
		row := RouteLimit{Method: to.Method, Pattern: to.Path, Off: r.off, Source: r.source}
		if r.source == sourceRow {
			row.Source += " " + r.where
		}
		if !r.off {
			row.Limits, row.Algorithm, row.Budget, row.DryRun = r.policy.limits, r.policy.algorithm, r.policy.name, r.policy.dryRun
			row.ByFunction = r == l.base && l.limitFunc != nil
			row.Key = r.key.String()
			row.Cost = r.cost
			if r.cost == 0 && l.cost == nil {
				row.Cost = 1
			}
		}
		table = append(table, row)
	}
	slices.SortFunc(table, func(a, b RouteLimit) int {
		return cmp.Or(strings.Compare(a.Pattern, b.Pattern), strings.Compare(a.Method, b.Method))
	})
	return table
}

// String returns the table with a line for each route under a line of titles.
func (t Table) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	line := func(columns ...string) { _, _ = fmt.Fprintln(w, strings.Join(columns, "\t")) }
	line("METHOD", "PATTERN", "LIMITS", "KEY", "ALGORITHM", "COST", "BUDGET", "FROM")
	for _, r := range t {
		if r.Off {
			line(r.Method, r.Pattern, ruleOff, "-", "-", "-", "-", r.Source)
			continue
		}
		limits, cost := limitsString(r.Limits), strconv.Itoa(r.Cost)
		if r.ByFunction {
			limits = "by function, else " + limits
		}
		if r.DryRun {
			limits += " (dry-run)"
		}
		if r.Cost == 0 {
			cost = "by function"
		}
		line(r.Method, r.Pattern, limits, r.Key, r.Algorithm.String(), cost, r.Budget, r.Source)
	}
	_ = w.Flush()
	return b.String()
}
