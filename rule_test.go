package ratelimit_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/aed328ba/ratelimit"
	"github.com/gin-gonic/gin/binding"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestARuleIsReadHoweverItIsSpacedAndPrintsInOneForm(t *testing.T) {
	for text, want := range map[string]string{
		"5/minute":                 "5/minute",
		" 5 per MINUTE ":           "5/minute",
		"OFF":                      "off",
		"10/second, 1000/hour":     "10/second, 1000/hour",
		"10/s,1000 per 2 hours":    "10/second, 1000/2h",
		"5/m by ip":                "5/minute by ip",
		"5/m\tBY\nIP":              "5/minute by ip",
		"5/m by header:x-api-key":  "5/minute by header:X-Api-Key",
		"5/m by header: X-API-Key": "5/minute by header:X-Api-Key",
		"5/m by header :X-API-Key": "5/minute by header:X-Api-Key",
		"5/m by Param:Id":          "5/minute by param:Id",
		"5/m by user:Name":         "5/minute by user:Name",
		"5/m by user:a:":           "5/minute by user:a:",
		"5/m by cookie:sid":        "5/minute by cookie:sid",
		"5/m by query:token":       "5/minute by query:token",
		"5/m by route":             "5/minute by route",
		"5/m by global":            "5/minute by global",
		"5/m by ip+route":          "5/minute by ip+route",
		"5/m by ip + user:id+ROUTE using token-bucket":  "5/minute by ip+user:id+route using token-bucket",
		"20/s burst 40 using Token-Bucket cost 5":       "20/second burst 40 using token-bucket cost 5",
		"20 / s burst 40,1/d burst 2":                   "20/second burst 40, 1/day burst 2",
		"5/minute dry-run as login cost 2 by ip":        "5/minute by ip cost 2 as login dry-run",
		"5/minute as a/b.C_d-9 USING fixed-window":      "5/minute using fixed-window as a/b.C_d-9",
		"1/s, 2/m, 3/h, 4/d, 5/2s, 6/3s, 7/4s, 8/5s":    "1/second, 2/minute, 3/hour, 4/day, 5/2s, 6/3s, 7/4s, 8/5s",
		"100 per 2 days by ip using sliding-window-log": "100/48h by ip using sliding-window-log",
	} {
		r, err := ratelimit.ParseRule(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, r.String(), text)
		again, err := ratelimit.ParseRule(want)
		require.NoError(t, err, want)
		assert.Equal(t, r, again, text)
	}
}

const (
	limitForm = `a limit is written like "100/minute", "10 per 1m30s" or "20/s burst 40"`
	keyForms  = "ip, header:NAME, user:CONTEXTKEY, cookie:NAME, query:NAME, param:NAME, route or global"
)

func TestARuleThatCannotBeMeantIsAnErrorThatPointsAtTheWord(t *testing.T) {
	clauses := " (use by, using, cost, as or dry-run after the limits)"
	algorithms := "fixed-window, sliding-window-log, sliding-window-counter, token-bucket"
	for text, want := range map[string]string{
		"":                `the rule is empty; write limits like "5/minute by ip", or "off"`,
		" \t":             `the rule is empty; write limits like "5/minute by ip", or "off"`,
		"of":              `"of" is no limit (` + limitForm + `) and not "off", which exempts a route`,
		"unlimited":       `"unlimited" is no limit (` + limitForm + `) and not "off", which exempts a route`,
		"false":           `"false" is no limit (` + limitForm + `) and not "off", which exempts a route`,
		"off by ip":       `"off" stands alone`,
		"off, 5/minute":   `"off" stands alone`,
		"by ip":           `no limit before "by"; ` + limitForm,
		"5/fortnight":     `unknown unit "fortnight" (use s, m, h or d)`,
		"5/minuet by ip":  `unknown unit "minuet" (use s, m, h or d); did you mean "minute"?`,
		"0/minute":        "number of requests is 0, which would never let anything pass; use at least 1",
		"5/500d":          "period 12000h0m0s is too long; use at most 366 days",
		"5 by ip":         limitForm,
		"5/minute,":       `no limit beside a ","; ` + limitForm,
		", 5/minute":      `no limit beside a ","; ` + limitForm,
		"5/minute, by ip": `no limit beside a ","; ` + limitForm,
		"5/minute, off":   limitForm,
		"5/m, 10/minute":  `limits "5/minute" and "10/minute" have the same period, so that one of them decides alone; keep the stricter`,
		"1/s,1/2s,1/3s,1/4s,1/5s,1/6s,1/7s,1/8s,1/9s": "9 limits given, at most 8 can be enforced together",
		"200000/h using sliding-window-log":           `limit "200000/hour": a sliding-window-log keeps a record of every request, at most 100000; use SlidingWindowCounter or TokenBucket`,
		"20/s burst":                                  `want one number after "burst"; ` + limitForm,
		"20/s burst by ip":                            `want one number after "burst"; ` + limitForm,
		"20/s brust 40":                               `unexpected "brust"` + clauses + `; did you mean "burst"?`,
		"5/minute usign token-bucket":                 `unexpected "usign"` + clauses + `; did you mean "using"?`,
		"5/minute uses token-bucket":                  `unexpected "uses"` + clauses,
		"5/minute dryrun":                             `unexpected "dryrun"` + clauses + `; did you mean "dry-run"?`,
		"5/minute every":                              `unexpected "every"` + clauses,
		"5/minute/second":                             `unexpected "/"` + clauses,
		"5/minute off":                                `unexpected "off"` + clauses,
		"5/minute by ip, 10/hour":                     `unknown key "ip," (use ` + keyForms + `); did you mean "ip"?`,
		"5/minute by":                                 `"by" needs a key: ` + keyForms,
		"5/minute by using token-bucket":              `"by" needs a key: ` + keyForms,
		"5/minute by ips":                             `unknown key "ips" (use ` + keyForms + `); did you mean "ip"?`,
		"5/minute by haeder:X":                        `unknown key "haeder:X" (use ` + keyForms + `); did you mean "header"?`,
		"5/minute by JoinKeys":                        `unknown key "JoinKeys" (use ` + keyForms + `)`,
		"5/minute by key:x":                           `unknown key "key:x" (use ` + keyForms + `)`,
		"5/minute by ip:1.2.3.4":                      `key "ip:1.2.3.4": ip takes no name`,
		"5/minute by header":                          `key "header" needs a name, as in "header:X-API-Key"`,
		"5/minute by user":                            `key "user" needs a name, as in "user:userID"`,
		"5/minute by param: cost 2":                   `key "param:" needs a name, as in "param:id"`,
		"5/minute by header:X:Y":                      `key "header:X:Y": "X:Y" is not a header name`,
		"5/minute by cookie:a=b":                      `key "cookie:a=b": "a=b" is not a cookie name`,
		"5/minute by query:a,ip":                      `key "query:a,ip": a name holds no ","; keys are joined with "+"`,
		"5/minute by ip+":                             `key "ip+" has nothing on one side of a "+"`,
		"5/minute by ip++route":                       `key "ip++route" has nothing on one side of a "+"`,
		"5/minute by ip+IP":                           `key "ip+IP" names ip twice`,
		"5/minute by ip by route":                     `"by" is given twice`,
		"5/minute dry-run dry-run":                    `"dry-run" is given twice`,
		"5/minute using":                              `"using" needs an algorithm: ` + algorithms,
		"5/minute using by ip":                        `"using" needs an algorithm: ` + algorithms,
		"5/minute using tokenbucket":                  `unknown algorithm "tokenbucket" (use ` + algorithms + `); did you mean "token-bucket"?`,
		"5/minute cost":                               `"cost" needs a number, as in "cost 5"`,
		"5/minute cost as x":                          `"cost" needs a number, as in "cost 5"`,
		"5/minute cost 0":                             `cost is 0, which would never count anything; write "off" to exempt a route`,
		"5/minute cost -1":                            `cost "-1" is not a positive whole number`,
		"5/minute cost 9999999999":                    "cost 9999999999 is too large (at most 2147483647)",
		"5/minute as":                                 `"as" needs a name, as in "as login"`,
		"5/minute as dry-run":                         `"as" needs a name, as in "as login"`,
		"5/minute as a,b":                             `the name "a,b" has a ','; use letters, digits, ".", "_", "-" and "/"`,
	} {
		r, err := ratelimit.ParseRule(text)
		assert.EqualError(t, err, "ratelimit: rule "+strconv.Quote(text)+": "+want, text)
		assert.Equal(t, ratelimit.Rule{}, r)
	}
}

func TestRulesStandInConfigurationFiles(t *testing.T) {
	var fromJSON, fromYAML map[string]ratelimit.Rule
	require.NoError(t, json.Unmarshal([]byte(`{"POST /login": "5/minute by ip", "GET /healthz": "off"}`), &fromJSON))
	require.NoError(t, binding.YAML.BindBody([]byte("POST /login: 5/minute by ip\nGET /healthz: off\n"), &fromYAML))
	assert.Equal(t, fromJSON, fromYAML)
	text, err := json.Marshal(fromJSON)
	require.NoError(t, err)
	assert.JSONEq(t, `{"POST /login": "5/minute by ip", "GET /healthz": "off"}`, string(text))

	var r ratelimit.Rule
	assert.EqualError(t, json.Unmarshal([]byte(`"5/year"`), &r), `ratelimit: rule "5/year": unknown unit "year" (use s, m, h or d)`)
	_, err = json.Marshal(r)
	assert.ErrorContains(t, err, `ratelimit: the rule is empty; write limits like "5/minute by ip", or "off"`)
}

func FuzzParseRule(f *testing.F) {
	for _, seed := range []string{
		"off", "5/minute", "10/second, 1000/hour by header:X-API-Key", "20/s burst 40 using token-bucket cost 5",
		"5/minute by ip as login", "5/m by user: a:+ip dry-run", "1 per 2 days by param:\xff", ",/by:+",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ratelimit.ParseRule(text)
		if err != nil {
			assert.True(t, strings.HasPrefix(err.Error(), "ratelimit: rule "+strconv.Quote(text)+": "), err)
			assert.Equal(t, ratelimit.Rule{}, r)
			return
		}
		again, err := ratelimit.ParseRule(r.String())
		require.NoError(t, err, "%q prints as %q", text, r)
		assert.Equal(t, r, again)
	})
}
