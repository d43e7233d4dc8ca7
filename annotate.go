package ratelimit

import (
	"fmt"
	"net/http"
	"path"
	"strings"

	"github.com/gin-gonic/gin"
)

// Annotate returns router with a rule, as [ParseRule] reads it, for each route
// that is registered through it:
//
//	limits.Annotate(router, "5/minute by ip").POST("/login", login)
//	limits.Annotate(router, "off").GET("/healthz", health)
//
// The rule replaces the limiter's default for that route, as a row of
// [WithRoutes] does, and goes before rows that end in "*". Each call that
// registers has a budget of its own, which the methods of one Any, Match or
// Static share; "as NAME" makes several calls share one. Annotating what
// Annotate returned replaces the rule, or adds to it where it is another
// limiter's.
//
// Where [Limiter.Middleware] stands in the chain it decides there; where it
// does not, the limiter decides before the route's own handlers. Either way it
// decides once.
//
// Router is an engine, a group, or what Annotate returned. A rule that is
// malformed or cannot be enforced, and a second rule for a route, panic as Gin
// does on an invalid route.
func (l *Limiter) Annotate(router gin.IRoutes, rule string) gin.IRoutes {
	// The route is not known yet, but whatever else is wrong with the rule.
	if _, err := l.readRule(rule, "", sourceAnnotation); err != nil {
		panic(fmt.Errorf("ratelimit: rule %q: %w", rule, err))
	}
	a := &annotated{}
	switch r := router.(type) {
	case *annotated:
		a.router = r.router
		for _, layer := range r.layers {
			if layer.limiter != l {
				a.layers = append(a.layers, layer)
			}
		}
	case groupRouter:
		a.router = r
	default:
		panic(fmt.Errorf("ratelimit: Annotate: routes cannot be annotated on a %T; use an engine or a group", router))
	}
	a.layers = append(a.layers, layer{l, rule})
	return a
}

// A groupRouter is an engine or a group.
type groupRouter interface {
	gin.IRouter
	BasePath() string
}

// An annotated router registers routes with the rule of one limiter, or of
// several.
type annotated struct {
	router groupRouter // not embedded: its methods would register without a rule
	layers []layer
}

type layer struct {
	limiter *Limiter
	rule    string
}

// Use adds handlers to the router beneath, for routes registered from now on.
func (a *annotated) Use(handlers ...gin.HandlerFunc) gin.IRoutes {
	a.router.Use(handlers...)
	return a
}

// with gives the rules to a route, and returns a group of no other routes in
// which the limiters stand last.
func (a *annotated) with(methods []string, relativePath string) *gin.RouterGroup {
	handlers := make([]gin.HandlerFunc, len(a.layers))
	for i, layer := range a.layers {
		pattern := a.router.Group(relativePath).BasePath() // as Gin joins them
		if err := layer.limiter.annotate(methods, pattern, layer.rule); err != nil {
			panic(err)
		}
		handlers[i] = layer.limiter.handle
	}
	return a.router.Group("", handlers...)
}

// own is with for a route with handlers of its own, without which Gin would
// take the limiter for the handler.
func (a *annotated) own(methods []string, relativePath string, handlers []gin.HandlerFunc) *gin.RouterGroup {
	if len(handlers) == 0 {
		panic(fmt.Errorf("ratelimit: rule %q for %s: there must be at least one handler", a.layers[len(a.layers)-1].rule, labelOf(methods, a.router.Group(relativePath).BasePath())))
	}
	return a.with(methods, relativePath)
}

// Handle registers a route.
func (a *annotated) Handle(method, relativePath string, handlers ...gin.HandlerFunc) gin.IRoutes {
	a.own([]string{method}, relativePath, handlers).Handle(method, relativePath, handlers...)
	return a
}

// Any registers a route for each of Gin's methods.
func (a *annotated) Any(relativePath string, handlers ...gin.HandlerFunc) gin.IRoutes {
	a.own(methods, relativePath, handlers).Any(relativePath, handlers...)
	return a
}

// Match registers a route for each of methods.
func (a *annotated) Match(methods []string, relativePath string, handlers ...gin.HandlerFunc) gin.IRoutes {
	a.own(methods, relativePath, handlers).Match(methods, relativePath, handlers...)
	return a
}

// GET registers a route.
func (a *annotated) GET(relativePath string, handlers ...gin.HandlerFunc) gin.IRoutes {
	return a.Handle(http.MethodGet, relativePath, handlers...)
}

// POST registers a route.
func (a *annotated) POST(relativePath string, handlers ...gin.HandlerFunc) gin.IRoutes {
	return a.Handle(http.MethodPost, relativePath, handlers...)
}

// DELETE registers a route.
func (a *annotated) DELETE(relativePath string, handlers ...gin.HandlerFunc) gin.IRoutes {
	return a.Handle(http.MethodDelete, relativePath, handlers...)
}

// PATCH registers a route.
func (a *annotated) PATCH(relativePath string, handlers ...gin.HandlerFunc) gin.IRoutes {
	return a.Handle(http.MethodPatch, relativePath, handlers...)
}

// PUT registers a route.
func (a *annotated) PUT(relativePath string, handlers ...gin.HandlerFunc) gin.IRoutes {
	return a.Handle(http.MethodPut, relativePath, handlers...)
}

// OPTIONS registers a route.
func (a *annotated) OPTIONS(relativePath string, handlers ...gin.HandlerFunc) gin.IRoutes {
	return a.Handle(http.MethodOptions, relativePath, handlers...)
}

// HEAD registers a route.
func (a *annotated) HEAD(relativePath string, handlers ...gin.HandlerFunc) gin.IRoutes {
	return a.Handle(http.MethodHead, relativePath, handlers...)
}

// What Gin registers to serve a file or a folder.
var staticMethods = []string{http.MethodGet, http.MethodHead}

// StaticFile registers a file for GET and HEAD.
func (a *annotated) StaticFile(relativePath, file string) gin.IRoutes {
	a.with(staticMethods, relativePath).StaticFile(relativePath, file)
	return a
}

// StaticFileFS registers a file for GET and HEAD.
func (a *annotated) StaticFileFS(relativePath, file string, fs http.FileSystem) gin.IRoutes {
	a.with(staticMethods, relativePath).StaticFileFS(relativePath, file, fs)
	return a
}

// Static registers a folder for GET and HEAD.
func (a *annotated) Static(relativePath, root string) gin.IRoutes {
	return a.StaticFS(relativePath, gin.Dir(root, false))
}

// StaticFS registers a folder for GET and HEAD.
func (a *annotated) StaticFS(relativePath string, fs http.FileSystem) gin.IRoutes {
	a.with(staticMethods, path.Join(relativePath, "/*filepath")).StaticFS(relativePath, fs)
	return a
}

// labelOf names what one call registers: "POST /login", "GET|HEAD /img/*filepath",
// or the pattern alone for all methods.
func labelOf(of []string, pattern string) string {
	if len(of) == len(methods) {
		return pattern
	}
	return strings.Join(of, "|") + " " + pattern
}
