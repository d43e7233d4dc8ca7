package ratelimit

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	"github.com/gin-gonic/gin"
)

// A KeyFunc says who is calling: requests of one key share a budget.
//
// "" means that this request has no such key. The limiter then counts it by
// the client's IP, in a namespace of its own: a missing header neither escapes
// the limit nor shares a budget with everybody else who lacks it.
//
// The functions of this package return their key with its kind, as in
// "user:42" and "ip:203.0.113.7". What a function of your own returns counts
// under "key:", so that no value of it can be another client's IP.
type KeyFunc func(*gin.Context) string

// KeyByIP counts by the client's IP address: the key a limiter uses by
// default. See [WithIPv6Prefix] for IPv6.
//
// The client cannot choose it. Until the application says which proxies it
// trusts, with SetTrustedProxies or TrustedPlatform of its Gin engine, that is
// the address of the connection; then it is what ClientIP returns, in one
// spelling.
func KeyByIP() KeyFunc { return builtin(keySpec{kind: keyIP}) }

// KeyByHeader counts by the value of a request header, such as an API key. The
// client chooses that value: count by it only what has been authenticated, or
// limit by IP as well.
func KeyByHeader(name string) KeyFunc {
	return builtin(keySpec{kind: keyHeader, name: http.CanonicalHeaderKey(name)})
}

// KeyByUser counts by the value that a middleware before the limiter has put
// into the Gin context with c.Set(contextKey, value): a string, a number or a
// [fmt.Stringer]. Another kind of value, having no text of its own, counts as
// missing, which is logged once.
func KeyByUser(contextKey any) KeyFunc {
	return builtin(keySpec{kind: keyUser, contextKey: contextKey, name: fmt.Sprint(contextKey)})
}

// KeyByCookie counts by the value of a cookie, which the client chooses; see
// [KeyByHeader].
func KeyByCookie(name string) KeyFunc { return builtin(keySpec{kind: keyCookie, name: name}) }

// KeyByQuery counts by the first value of a query parameter, which the client
// chooses; see [KeyByHeader].
func KeyByQuery(name string) KeyFunc { return builtin(keySpec{kind: keyQuery, name: name}) }

// KeyByParam counts by a parameter of the route: "id" in "/users/:id".
func KeyByParam(name string) KeyFunc { return builtin(keySpec{kind: keyParam, name: name}) }

// KeyByRoute counts by method and route pattern, as in "GET /users/:id", for
// all clients together unless joined with another key. Requests that match no
// route are one.
func KeyByRoute() KeyFunc { return builtin(keySpec{kind: keyRoute}) }

// KeyGlobal counts everything together.
func KeyGlobal() KeyFunc { return builtin(keySpec{kind: keyGlobal}) }

// JoinKeys counts by all of keys together, such as each user on each route.
// Where one of them is missing, the client's IP takes its place.
func JoinKeys(keys ...KeyFunc) KeyFunc { return builtin(keySpec{kind: keyJoin, parts: specsOf(keys)}) }

// FirstKey counts by the first of keys that the request has, such as the user,
// else the API key. Two that give the same text are one client: the users that
// KeyByUser finds under different context keys are all "user:...".
func FirstKey(keys ...KeyFunc) KeyFunc {
	return builtin(keySpec{kind: keyFirst, parts: specsOf(keys)})
}

// A keySpec is a KeyFunc that can be looked into: printed, checked, and
// evaluated with the limiter's own settings.
type keySpec struct {
	kind       keyKind
	name       string // of the header, cookie, ...
	contextKey any    // keyUser
	fn         KeyFunc
	parts      []keySpec // keyJoin, keyFirst
}

type keyKind uint8

const (
	keyIP keyKind = iota
	keyHeader
	keyUser
	keyCookie
	keyQuery
	keyParam
	keyRoute
	keyGlobal
	keyJoin
	keyFirst
	keyCustom // a function of the user's own
)

var keyKinds = [...]string{"ip", "header", "user", "cookie", "query", "param", "route", "global", "JoinKeys", "FirstKey", "key"}

// specProbe is where a built-in KeyFunc, called with a context that has no
// request, leaves its keySpec.
type specProbe struct{}

// builtin makes a KeyFunc of a keySpec. All of them share the one closure
// below, by which specOf knows them; inlining would make copies of it.
//
//go:noinline
func builtin(k keySpec) KeyFunc {
	env := &keyEnv{ipv6Prefix: defaultIPv6Prefix, warner: new(warner)}
	return func(c *gin.Context) string {
		if c.Request == nil {
			c.Set(specProbe{}, k)
			return ""
		}
		key, _ := k.append(nil, c, env)
		return string(key)
	}
}

var builtinCode = reflect.ValueOf(builtin(keySpec{})).Pointer()

// specOf returns what f was built from, or a keyCustom that calls it. It never
// calls a function of the user's.
func specOf(f KeyFunc) keySpec {
	if f == nil || reflect.ValueOf(f).Pointer() != builtinCode {
		return keySpec{kind: keyCustom, fn: f}
	}
	var probe gin.Context
	f(&probe)
	k, _ := probe.Get(specProbe{})
	return k.(keySpec)
}

func specsOf(keys []KeyFunc) []keySpec {
	specs := make([]keySpec, len(keys))
	for i, f := range keys {
		specs[i] = specOf(f)
	}
	return specs
}

// String returns k as a rule writes it: "ip", "header:X-Api-Key+route".
func (k keySpec) String() string {
	switch k.kind {
	case keyIP, keyRoute, keyGlobal:
		return keyKinds[k.kind]
	case keyCustom:
		return "custom"
	case keyJoin, keyFirst:
		texts := make([]string, len(k.parts))
		for i, part := range k.parts {
			texts[i] = part.String()
		}
		if k.kind == keyJoin {
			return strings.Join(texts, "+")
		}
		return "first(" + strings.Join(texts, ", ") + ")"
	}
	return keyKinds[k.kind] + ":" + k.name
}

// validate reports why k could never find a key.
func (k keySpec) validate() error {
	switch k.kind {
	case keyHeader:
		if !isToken(k.name) {
			return fmt.Errorf("KeyByHeader: %q is not a header name", k.name)
		}
	case keyCookie:
		if !isToken(k.name) {
			return fmt.Errorf("KeyByCookie: %q is not a cookie name", k.name)
		}
	case keyQuery:
		if k.name == "" {
			return errors.New("KeyByQuery: the name is empty")
		}
		if strings.Contains(k.name, "=") {
			return fmt.Errorf(`KeyByQuery: the name %q has a "=", which stands between name and value in a key`, k.name)
		}
	case keyParam:
		if k.name == "" {
			return errors.New("KeyByParam: the name is empty; use \"id\" for the route \"/users/:id\"")
		}
	case keyUser:
		if k.contextKey == nil || k.contextKey == "" {
			return errors.New("KeyByUser: the context key is empty; use the one your middleware passes to c.Set")
		}
		if !reflect.TypeOf(k.contextKey).Comparable() {
			return fmt.Errorf("KeyByUser: a %T cannot be a context key", k.contextKey)
		}
	case keyCustom:
		if k.fn == nil {
			return errors.New("the key function is nil")
		}
	case keyJoin, keyFirst:
		if len(k.parts) == 0 {
			return fmt.Errorf("%s: no key given", keyKinds[k.kind])
		}
		var faults []error
		for _, part := range k.parts {
			faults = append(faults, part.validate())
		}
		return errors.Join(faults...)
	}
	return nil
}

// append adds the key of this request to dst, and reports false where it has
// none.
func (k *keySpec) append(dst []byte, c *gin.Context, env *keyEnv) ([]byte, bool) {
	switch k.kind {
	case keyIP:
		return env.appendIP(append(dst, "ip:"...), c), true
	case keyHeader:
		if k.name == "Host" { // net/http keeps it out of the headers
			return k.appendNamed(dst, c.Request.Host)
		}
		return k.appendNamed(dst, c.GetHeader(k.name))
	case keyCookie:
		cookie, err := c.Request.Cookie(k.name)
		if err != nil {
			return dst, false
		}
		return k.appendNamed(dst, cookie.Value)
	case keyQuery:
		return k.appendNamed(dst, c.Query(k.name))
	case keyParam:
		return k.appendNamed(dst, c.Param(k.name))
	case keyUser:
		return k.appendValue(dst, env.userText(c, k.contextKey))
	case keyCustom:
		return k.appendValue(dst, k.fn(c))
	case keyGlobal:
		return append(dst, "global"...), true
	case keyRoute:
		pattern := c.FullPath()
		if pattern == "" { // not the method: there are as many as a client can think of
			return append(dst, "route:none"...), true
		}
		return append(append(append(append(dst, "route:"...), c.Request.Method...), ' '), pattern...), true
	case keyFirst:
		for i := range k.parts {
			if key, ok := k.parts[i].append(dst, c, env); ok {
				return key, true
			}
		}
		return dst, false
	default: // keyJoin
		return k.appendJoined(dst, c, env), true
	}
}

func (k *keySpec) appendValue(dst []byte, value string) ([]byte, bool) {
	if value == "" {
		return dst, false
	}
	return append(append(append(dst, keyKinds[k.kind]...), ':'), value...), true
}

func (k *keySpec) appendNamed(dst []byte, value string) ([]byte, bool) {
	if value == "" {
		return dst, false
	}
	return append(append(append(append(append(dst, keyKinds[k.kind]...), ':'), k.name...), '='), value...), true
}

// appendJoined writes "join:" and the parts with "+" between them, in which
// "+" and "%" are escaped: no two lists of parts have one text.
func (k *keySpec) appendJoined(dst []byte, c *gin.Context, env *keyEnv) []byte {
	dst = append(dst, "join:"...)
	for i := range k.parts {
		if i > 0 {
			dst = append(dst, '+')
		}
		part, ok := k.parts[i].append(nil, c, env)
		if !ok {
			part = env.appendAnonymous(nil, c)
		}
		for _, b := range part {
			switch b {
			case '%':
				dst = append(dst, "%25"...)
			case '+':
				dst = append(dst, "%2B"...)
			default:
				dst = append(dst, b)
			}
		}
	}
	return dst
}

// isToken reports whether text is a token, as RFC 9110 5.6.2 has it: what a
// header or a cookie may be called.
func isToken(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

// maxKeyLen is the length above which a key is hashed before it is kept.
const maxKeyLen = 128

// shortKey returns key, or its hash where it is long: an 8 KiB header value
// must not become an 8 KiB key.
func shortKey(key string) string {
	if len(key) <= maxKeyLen {
		return key
	}
	return "hash:" + keyHash(key)
}

// keyHash is the 128-bit hash that stands for a key outside of the process.
func keyHash(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:16])
}
