// Annotations writes limits beside the routes, in the three notations: a table
// from a file, annotations where routes are registered, and tags of a struct.
// In Gin's debug mode it prints what holds on each route.
package main

import (
	"embed"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"path"

	"github.com/aed328ba/ratelimit"
	"github.com/gin-gonic/gin"
	"github.com/gin-gonic/gin/binding"
)

//go:embed routes.json routes.yaml
var files embed.FS

// load reads a table of routes; JSON and YAML hold it in the same form.
func load(name string) (map[string]string, error) {
	text, err := files.ReadFile(name)
	if err != nil {
		return nil, err
	}
	table := map[string]string{}
	if path.Ext(name) == ".yaml" {
		return table, binding.YAML.BindBody(text, &table)
	}
	return table, binding.JSON.BindBody(text, &table)
}

// Orders keeps its routes in a struct.
type Orders struct {
	_     struct{}        `ratelimit:"30/minute"` // for those that say nothing else
	List  gin.HandlerFunc `route:"GET /orders"`
	Place gin.HandlerFunc `route:"POST /orders" ratelimit:"4/minute using sliding-window-log"`
	Rates gin.HandlerFunc `route:"GET /orders/rates" ratelimit:"-"`
}

func main() {
	addr := flag.String("addr", "localhost:8080", "where to listen")
	file := flag.String("routes", "routes.json", "the table: routes.json or routes.yaml")
	flag.Parse()

	router := gin.Default()
	_ = router.SetTrustedProxies(nil) // no proxy stands before this one

	table, err := load(*file)
	if err != nil {
		log.Fatal(err)
	}
	limits, err := ratelimit.NewLimiter(
		ratelimit.WithLimit(ratelimit.PerMinute(100)), // for all that has no rule
		ratelimit.WithRoutes(table),                   // 1. the table
	)
	if err != nil {
		log.Fatal(err)
	}
	router.Use(limits.Middleware())

	hello := func(c *gin.Context) { c.String(http.StatusOK, "%s %s\n", c.Request.Method, c.FullPath()) }
	router.GET("/", hello)
	router.GET("/search", hello)
	router.GET("/admin/users", hello)
	router.GET("/healthz", hello)

	limits.Annotate(router, "3/minute by ip as login").POST("/login", hello) // 2. annotations
	limits.Annotate(router, "3/minute by ip as login").POST("/reset", hello)

	if err := limits.Register(router, &Orders{List: hello, Place: hello, Rates: hello}); err != nil { // 3. tags
		log.Fatal(err)
	}

	if err := limits.Verify(router); err != nil { // a rule for no route?
		log.Fatal(err)
	}
	if gin.IsDebugging() {
		fmt.Print(limits.Table(router))
	}

	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		log.Fatal(err)
	}
	url := "http://" + listener.Addr().String()
	fmt.Println("Listening. Three logins a minute, counted together with resets; searches, two at a time; no limit on health checks:")
	fmt.Println("  for i in 1 2 3 4; do curl -s -o /dev/null -w '%{http_code} ' -X POST " + url + "/login; done; echo")
	fmt.Println("  curl -i -X POST " + url + "/reset")
	fmt.Println("  curl -i '" + url + "/search?q=gin'")
	fmt.Println("  curl -i " + url + "/healthz")
	log.Fatal(router.RunListener(listener))
}
