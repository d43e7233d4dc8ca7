// Groups limits different parts of an API differently: the public pages by IP,
// the API by key and at two rates at once, the login by the name that is tried.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"

	"github.com/aed328ba/ratelimit"
	"github.com/gin-gonic/gin"
)

func main() {
	addr := flag.String("addr", "localhost:8080", "where to listen")
	flag.Parse()

	gin.SetMode(gin.ReleaseMode)
	router := gin.Default()
	_ = router.SetTrustedProxies(nil) // no proxy stands before this one

	store := ratelimit.NewMemoryStore(ratelimit.WithMaxKeys(100_000)) // for all of them

	pages := router.Group("/pages", ratelimit.New(
		ratelimit.WithName("pages"),
		ratelimit.WithStore(store),
		ratelimit.WithLimit(ratelimit.PerMinute(30)),
	))
	pages.GET("/:name", func(c *gin.Context) { c.String(http.StatusOK, "page %s\n", c.Param("name")) })

	api := router.Group("/api", ratelimit.New(
		ratelimit.WithName("api"),
		ratelimit.WithStore(store),
		ratelimit.WithLimit(ratelimit.PerSecond(2).WithBurst(5), ratelimit.PerHour(1000)), // both must hold
		ratelimit.WithAlgorithm(ratelimit.TokenBucket),
		ratelimit.WithKeyFunc(ratelimit.KeyByHeader("X-API-Key")),
		ratelimit.WithHeaders(ratelimit.HeadersDraft10),
	))
	api.GET("/items", func(c *gin.Context) { c.JSON(http.StatusOK, []string{"a", "b"}) })

	// Only failed logins count, each name and IP by itself.
	router.POST("/login", ratelimit.New(
		ratelimit.WithName("login"),
		ratelimit.WithStore(store),
		ratelimit.WithLimit(ratelimit.PerMinute(3)),
		ratelimit.WithAlgorithm(ratelimit.SlidingWindowLog),
		ratelimit.WithKeyFunc(ratelimit.JoinKeys(ratelimit.KeyByIP(), func(c *gin.Context) string { return c.PostForm("name") })),
		ratelimit.WithRefund(func(c *gin.Context) bool { return c.Writer.Status() == http.StatusOK }),
	), func(c *gin.Context) {
		if c.PostForm("password") != "secret" {
			c.String(http.StatusUnauthorized, "wrong\n")
			return
		}
		c.String(http.StatusOK, "welcome\n")
	})

	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		log.Fatal(err)
	}
	url := "http://" + listener.Addr().String()
	fmt.Println("Listening. The API by key, and logins that fail:")
	fmt.Println("  curl -i -H 'X-API-Key: mine' " + url + "/api/items")
	fmt.Println("  for i in 1 2 3 4; do curl -s -o /dev/null -w '%{http_code} ' -d 'name=ann&password=x' " + url + "/login; done; echo")
	log.Fatal(router.RunListener(listener))
}
