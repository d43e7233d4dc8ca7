// Basic is the shortest application that limits: three requests a minute from
// each client.
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

	router.Use(ratelimit.New(ratelimit.WithLimit(ratelimit.PerMinute(3))))

	router.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello\n") })

	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		log.Fatal(err)
	}
	url := "http://" + listener.Addr().String() + "/"
	fmt.Println("Listening. The headers of one request, and four in a row, of which the limit admits three in all:")
	fmt.Println("  curl -i " + url)
	fmt.Println("  for i in 1 2 3 4; do curl -s -o /dev/null -w '%{http_code} ' " + url + "; done; echo")
	log.Fatal(router.RunListener(listener))
}
