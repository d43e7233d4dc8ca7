// Redis is the same API in two instances that share one budget in Redis: what
// one of them admits, the other counts.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"

	"github.com/aed328ba/ratelimit"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
)

func main() {
	addr := flag.String("addr", "localhost:8080", "where the first instance listens; the second takes a free port")
	redisAddr := flag.String("redis", "localhost:6379", "where Redis listens")
	flag.Parse()
	gin.SetMode(gin.ReleaseMode)

	fmt.Println("Listening. Five requests a minute, whichever of the two you ask; stop Redis, and each admits five by itself:")
	errs := make(chan error)
	for _, address := range []string{*addr, "localhost:0"} {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("  curl -i http://" + listener.Addr().String() + "/")
		go func() { errs <- instance(*redisAddr).RunListener(listener) }()
	}
	log.Fatal(<-errs)
}

// instance is one of as many as the load balancer needs.
func instance(redisAddr string) *gin.Engine {
	rdb := redis.NewClient(&redis.Options{
		Addr:                  redisAddr,
		ContextTimeoutEnabled: true, // a call ends at the limiter's deadline
	})

	router := gin.Default()
	_ = router.SetTrustedProxies(nil) // no proxy stands before this one
	router.Use(ratelimit.New(
		ratelimit.WithName("api"),
		ratelimit.WithStore(ratelimit.NewRedisStore(rdb)),
		ratelimit.WithLimit(ratelimit.PerMinute(5)),
	))
	router.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello\n") })
	return router
}
