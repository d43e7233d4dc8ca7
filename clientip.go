package ratelimit

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/gin-gonic/gin"
)

// defaultIPv6Prefix is how many bits of an IPv6 address count: one subscriber
// owns a whole /64 and could use a new address for every request.
const defaultIPv6Prefix = 64

// A keyEnv is what the keys of one limiter share: its settings, what it has
// learned about the Gin engines it serves, and its logger.
type keyEnv struct {
	ipv6Prefix int
	engines    atomic.Pointer[[]proxyTrust]
	warner     *warner
}

// appendIP appends the client's address as a key has it: IPv4 as it is, IPv6
// as its network.
func (env *keyEnv) appendIP(dst []byte, c *gin.Context) []byte {
	addr := env.clientAddr(c)
	switch {
	case !addr.IsValid() && isUnix(c.Request):
		return append(dst, "unix"...)
	case !addr.IsValid():
		return append(dst, "unknown"...)
	case addr.Is4():
		return addr.AppendTo(dst)
	}
	network, _ := addr.Prefix(env.ipv6Prefix)
	return network.AppendTo(dst)
}

// appendAnonymous appends the key of a request that has none of its own.
func (env *keyEnv) appendAnonymous(dst []byte, c *gin.Context) []byte {
	return env.appendIP(append(dst, "anonymous:"...), c)
}

// clientAddr returns the address of the client, as far as it cannot be chosen
// by the client; invalid where there is none.
func (env *keyEnv) clientAddr(c *gin.Context) netip.Addr {
	trust := env.trustOf(c)
	peer := parsePeer(c.Request.RemoteAddr)
	header := firstPresent(c.Request.Header, trust.headers)
	fromPlatform := trust.platform != "" && c.GetHeader(trust.platform) != ""
	switch {
	case fromPlatform:
	case header == "":
		return peer
	case trust.everyone:
		env.warner.once(warnForwarded, "the header "+header+" is ignored, because the Gin engine trusts every proxy and so any client could write it; "+
			"name the proxies you run with engine.SetTrustedProxies, or set engine.TrustedPlatform, to count by the address they report "+
			"(SetTrustedProxies(nil) if there are none)")
		return peer
	}
	answer := c.ClientIP()
	if !fromPlatform && !leadsTo(c.Request.Header.Values(header), answer) {
		answer = clientIPFrom(c, header)
	}
	if addr := parseAddr(answer); addr.IsValid() {
		return addr
	}
	return peer
}

// leadsTo reports whether Gin, which reads a forwarding header from its end,
// comes to answer before it comes to something it cannot read. If it does not,
// the answer is from another header, one that the proxy may have passed on as
// the client wrote it, or it is the peer.
func leadsTo(lines []string, answer string) bool {
	for i := len(lines) - 1; i >= 0; i-- {
		for rest := lines[i]; ; {
			comma := strings.LastIndexByte(rest, ',')
			item := strings.TrimSpace(rest[comma+1:])
			if item == answer {
				return true
			}
			if net.ParseIP(item) == nil {
				return false
			}
			if comma < 0 {
				break
			}
			rest = rest[:comma]
		}
	}
	return false
}

// clientIPFrom asks Gin for its answer as if header were the only one, and
// none of its addresses had the port that some proxies write.
func clientIPFrom(c *gin.Context, header string) string {
	items := strings.Split(strings.Join(c.Request.Header.Values(header), ","), ",")
	for i, item := range items {
		if addr := parseAddr(item); addr.IsValid() {
			items[i] = addr.String()
		}
	}
	return askGin(c, c.Request.Context(), c.Request.RemoteAddr, http.Header{header: {strings.Join(items, ", ")}})
}

// askGin returns what ClientIP would for another request to the same engine.
func askGin(c *gin.Context, ctx context.Context, remoteAddr string, header http.Header) string {
	other := c.Copy()
	other.Request = (&http.Request{RemoteAddr: remoteAddr, Header: header}).WithContext(ctx)
	return other.ClientIP()
}

// A proxyTrust is which forwarding headers a Gin engine believes, and whether
// it does so from everyone, which is Gin's default.
type proxyTrust struct {
	engine   reflect.Value // a *gin.Engine; held, so that its address stays its own
	everyone bool
	platform string   // engine.TrustedPlatform, canonical
	headers  []string // engine.RemoteIPHeaders, canonical
}

// engineField is where a gin.Context keeps its engine, which Gin does not
// export. Where a later Gin has it elsewhere, the engine is taken to have the
// default headers and no platform.
var engineField, hasEngineField = reflect.TypeFor[gin.Context]().FieldByName("engine")

// trustOf returns what the engine of c trusts, learned at its first request:
// by then the application has set it.
func (env *keyEnv) trustOf(c *gin.Context) *proxyTrust {
	var engine reflect.Value
	if hasEngineField {
		engine = reflect.ValueOf(c).Elem().FieldByIndex(engineField.Index)
	}
	known := env.engines.Load()
	if known != nil {
		for i := range *known {
			if t := &(*known)[i]; !engine.IsValid() || t.engine.Pointer() == engine.Pointer() {
				return t
			}
		}
	}
	t := learnTrust(c, engine)
	var list []proxyTrust
	if known != nil {
		list = *known
	}
	list = append(slices.Clip(list), t)
	// Lost to another goroutine, it is learned again at the next request.
	env.engines.CompareAndSwap(known, &list)
	return &list[len(list)-1]
}

func learnTrust(c *gin.Context, engine reflect.Value) proxyTrust {
	t := proxyTrust{engine: engine, headers: []string{"X-Forwarded-For", "X-Real-Ip"}}
	if engine.IsValid() {
		if engine.IsNil() { // a context made by hand
			return proxyTrust{engine: engine}
		}
		if platform := engine.Elem().FieldByName("TrustedPlatform"); platform.IsValid() {
			t.platform = http.CanonicalHeaderKey(platform.String())
		}
		if headers := engine.Elem().FieldByName("RemoteIPHeaders"); headers.IsValid() {
			t.headers = make([]string, headers.Len())
			for i := range t.headers {
				t.headers[i] = http.CanonicalHeaderKey(headers.Index(i).String())
			}
		}
	}
	t.everyone = trustsAll(c, t.headers, "192.0.2.77:1", "198.51.100.77:1", "203.0.113.77:1") ||
		trustsAll(c, t.headers, "[2001:db8::77]:1", "[3fff::77]:1", "[100::77]:1")
	return t
}

// trustsAll reports whether Gin believes each of these peers, addresses that
// are reserved for documentation and no proxy's.
func trustsAll(c *gin.Context, headers []string, peers ...string) bool {
	const claimed = "100::ffff"
	header := http.Header{}
	for _, name := range headers {
		header.Set(name, claimed)
	}
	for _, peer := range peers {
		if askGin(c, context.Background(), peer, header) != claimed {
			return false
		}
	}
	return true
}

func firstPresent(header http.Header, names []string) string {
	for _, name := range names {
		if values := header[name]; len(values) > 0 && (values[0] != "" || len(values) > 1) {
			return name
		}
	}
	return ""
}

// parseAddr reads an address with or without port, zone and brackets, in the
// one form that stands for the client: IPv4 where it is mapped into IPv6.
func parseAddr(text string) netip.Addr {
	text = strings.TrimSpace(text)
	addr, err := netip.ParseAddr(text)
	if err != nil {
		if ap, err := netip.ParseAddrPort(text); err == nil {
			addr = ap.Addr()
		} else if inner, found := strings.CutPrefix(text, "["); found {
			addr, _ = netip.ParseAddr(strings.TrimSuffix(inner, "]"))
		}
	}
	return addr.Unmap().WithZone("")
}

// parsePeer is parseAddr for what nearly always has a port, which spares it the
// making of an error; of an IPv4 address the port is not looked at.
func parsePeer(text string) netip.Addr {
	if colon := strings.LastIndexByte(text, ':'); colon > 0 && text[0] != '[' {
		if addr, err := netip.ParseAddr(text[:colon]); err == nil && addr.Is4() {
			return addr
		}
	} else if ap, err := netip.ParseAddrPort(text); err == nil {
		return ap.Addr().Unmap().WithZone("")
	}
	return parseAddr(text)
}

func isUnix(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && strings.HasPrefix(local.Network(), "unix")
}

// userText returns the text of a value of the Gin context, "" where it has
// none.
func (env *keyEnv) userText(c *gin.Context, contextKey any) string {
	value, _ := c.Get(contextKey)
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	case fmt.Stringer:
		if r := reflect.ValueOf(v); r.Kind() == reflect.Pointer && r.IsNil() {
			return ""
		}
		return v.String()
	}
	switch v := reflect.ValueOf(value); v.Kind() {
	case reflect.String:
		return v.String()
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.FormatInt(v.Int(), 10)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return strconv.FormatUint(v.Uint(), 10)
	}
	env.warner.once(warnUserType, fmt.Sprintf("KeyByUser(%q) found a %T, which has no text to count by, and counts by IP instead; set a string, a number or a fmt.Stringer", fmt.Sprint(contextKey), value))
	return ""
}
