package ratelimit_test

import (
	"encoding/json"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/aed328ba/ratelimit"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseLimitReadsWhatPeopleWrite(t *testing.T) {
	for text, want := range map[string]ratelimit.Limit{
		"100/minute":           ratelimit.PerMinute(100),
		"5/s":                  ratelimit.PerSecond(5),
		"5/second":             ratelimit.PerSecond(5),
		"5 / Seconds":          ratelimit.PerSecond(5),
		" 5 per sec ":          ratelimit.PerSecond(5),
		"100 per hour":         ratelimit.PerHour(100),
		"100 PER 2 hours":      ratelimit.Per(100, 2*time.Hour),
		"7/day":                ratelimit.PerDay(7),
		"7/d":                  ratelimit.PerDay(7),
		"7/1d12h":              ratelimit.Per(7, 36*time.Hour),
		"7/2d":                 ratelimit.Per(7, 48*time.Hour),
		"10/1m30s":             ratelimit.Per(10, 90*time.Second),
		"10/250ms":             ratelimit.Per(10, 250*time.Millisecond),
		"10 per 20 ms":         ratelimit.Per(10, 20*time.Millisecond),
		"10/1.5ms":             ratelimit.Per(10, 1500*time.Microsecond),
		"20/s burst 40":        ratelimit.PerSecond(20).WithBurst(40),
		"20 per 1m30s burst 5": ratelimit.Per(20, 90*time.Second).WithBurst(5),
		"2147483647/366d":      ratelimit.Per(math.MaxInt32, 366*24*time.Hour),
	} {
		got, err := ratelimit.ParseLimit(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)

		again, err := ratelimit.ParseLimit(got.String())
		require.NoError(t, err, "%q, printed from %q", got, text)
		assert.Equal(t, got, again, "String gives back what parses")
	}
}

func TestParseLimitRefusesWhatCannotBeMeant(t *testing.T) {
	const form = `; a limit is written like "100/minute", "10 per 1m30s" or "20/s burst 40"`
	for text, want := range map[string]string{
		"":                      form[2:],
		"   ":                   form[2:],
		"100":                   form[2:],
		"100/":                  form[2:],
		"/s":                    form[2:],
		"100 minute":            form[2:],
		"0/s":                   "number of requests is 0, which would never let anything pass; use at least 1",
		"-5/s":                  `number of requests "-5" is not a positive whole number` + form,
		"+5/s":                  `number of requests "+5" is not a positive whole number` + form,
		"1.5/s":                 `number of requests "1.5" is not a positive whole number` + form,
		"many/s":                `number of requests "many" is not a positive whole number` + form,
		"2147483648/s":          "number of requests 2147483648 is too large (at most 2147483647)",
		"99999999999999999/s":   "number of requests 99999999999999999 is too large (at most 2147483647)",
		"5/fortnight":           `unknown unit "fortnight" (use s, m, h or d)`,
		"5/month":               `unknown unit "month" (use s, m, h or d)`,
		"5/minuet":              `unknown unit "minuet" (use s, m, h or d); did you mean "minute"?`,
		"5/0s":                  "period 0s is too short; use at least 1ms",
		"5/0 seconds":           "number of seconds is 0, which would never let anything pass; use at least 1",
		"5/-1s":                 `unknown unit "-1s" (use s, m, h or d)`,
		"5/1µs":                 "period 1µs is too short; use at least 1ms",
		"5/999µs":               "period 999µs is too short; use at least 1ms",
		"5/367d":                "period 8808h0m0s is too long; use at most 366 days",
		"5/400 days":            "period of 400 days is too long (at most 366 days)",
		"5/2147483647 days":     "period of 2147483647 days is too long (at most 366 days)",
		"5/99999999999999h":     `unknown unit "99999999999999h" (use s, m, h or d)`,
		"20/s burst":            `want one number after "burst"` + form,
		"20/s burst 0":          "burst is 0, which would never let anything pass; use at least 1",
		"20/s burst -1":         `burst "-1" is not a positive whole number` + form,
		"20/s burst 40 40":      `want one number after "burst"` + form,
		"1/d burst 400":         "a bucket of 400 takes longer than 366 days to fill at 1 per 24h0m0s; use a smaller burst",
		"5/s extra":             form[2:],
		"5/s, 10/m":             form[2:],
		"5 per 2 3 s":           form[2:],
		"5/s\x7f":               `unknown unit "s\x7f" (use s, m, h or d)`,
		"١/s":                   `number of requests "١" is not a positive whole number` + form,
		"5/1.0000000000000001d": `unknown unit "1.0000000000000001d" (use s, m, h or d)`,
	} {
		_, err := ratelimit.ParseLimit(text)
		require.Error(t, err, text)
		assert.EqualError(t, err, "ratelimit: limit "+strconv.Quote(text)+": "+want, text)
	}
}

func TestLimitStandsInConfigurationFiles(t *testing.T) {
	var config struct{ Login, API ratelimit.Limit }
	require.NoError(t, json.Unmarshal([]byte(`{"login": "5/minute", "api": "20/s burst 40"}`), &config))
	assert.Equal(t, ratelimit.PerMinute(5), config.Login)
	assert.Equal(t, ratelimit.PerSecond(20).WithBurst(40), config.API)

	text, err := json.Marshal(config)
	require.NoError(t, err)
	assert.JSONEq(t, `{"Login":"5/minute","API":"20/second burst 40"}`, string(text))

	assert.EqualError(t, json.Unmarshal([]byte(`"5/year"`), &config.API),
		`ratelimit: limit "5/year": unknown unit "year" (use s, m, h or d)`)
	_, err = json.Marshal(ratelimit.Limit{})
	assert.ErrorContains(t, err, "the limit is empty")
}

func FuzzParseLimit(f *testing.F) {
	for _, seed := range []string{"100/minute", "5/s", "10/1m30s", "20/s burst 40", "100 per 2 hours", "7/1d12h", "0/s", "5/1.5ms", "", "9/9223372036854775807ns"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ratelimit.ParseLimit(text)
		if err != nil {
			assert.Equal(t, ratelimit.Limit{}, l)
			return
		}
		assert.Positive(t, l.Requests)
		assert.GreaterOrEqual(t, l.Period, time.Millisecond)
		again, err := ratelimit.ParseLimit(l.String())
		require.NoError(t, err, "%q prints as %q", text, l)
		assert.Equal(t, l, again)
		_, err = ratelimit.NewLimiter(ratelimit.WithLimit(l), ratelimit.WithAlgorithm(ratelimit.TokenBucket))
		assert.NoError(t, err, "what parses can be enforced")
	})
}
