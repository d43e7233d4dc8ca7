package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

const notesFile = "NOTES.md"

// report is RESULTS.md.
func report(d *data) string {
	var w strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&w, format+"\n", args...) }

	p("# Results\n")
	p("<!-- Written by cmd/results; change that, or NOTES.md, which is copied in below. -->\n")
	if d.quick() {
		p("> **A quick run.** It shows that everything works. The numbers mean nothing.\n")
	}
	p("How this was measured, and why it is fair, is in [README.md](README.md). Times are medians of all rounds in one")
	p("run, with the range in which the median lies with 95 %% confidence, as benchstat gives it.\n")
	p("```\ncd benchmarks && %s\n```\n", d.fact("command"))
	p("%s", environmentTable(d))
	p("Left out, because the Go proxy does not serve them: github.com/krishna-kudari/ratelimit and github.com/go-chi/httprate-redis.\n")

	p("## Targets\n")
	p("%s", targetTable(targets(d)))

	if notes, err := os.ReadFile(notesFile); err == nil {
		p("## Notes\n\n%s\n", strings.TrimSpace(string(notes)))
	}

	p("## In memory\n")
	p("Nanoseconds for each decision. Every limiter gets the same keys; \"× floor\" is against a `sync.Map`, an atomic")
	p("addition and one reading of the clock, which is less than any limiter can do.\n")
	p("![Decisions in memory](charts/memory.svg)\n")
	for _, s := range memoryScenarios {
		p("### %s\n", s.title)
		p("%s", memoryTable(d, s))
	}
	p("## Growth\n")
	p("Nanoseconds for each decision, allowed, on one core, from a thousand keys to a million. What the floor grows by is")
	p("what its caches miss.\n")
	p("![Cost against keys](charts/growth.svg)\n")
	p("%s", growthTable(d))

	p("## Size of a key in memory\n")
	p("Bytes on the heap for each of a million keys, the text of the key included where the limiter keeps it.\n")
	p("%s", sizeTable(d))

	p("## Latency of single calls\n")
	p("Nanoseconds of half a million calls, one after another, each with a key never seen, in a table that is full of a")
	p("million others. \"nothing\" calls nothing: it is what the clock takes, and its median is subtracted before percentiles")
	p("are divided. \"spinning\" touches no memory for a microsecond: its tail is how often the machine itself interrupts a")
	p("call of about that length.\n")
	p("%s", latencyTable(d))

	p("## Through Gin\n")
	p("Nanoseconds for a whole request of one client, by IP, with headers, on one core.\n")
	p("![What a middleware adds](charts/gin.svg)\n")
	p("%s", ginTable(d))

	p("## Redis\n")
	p("Decisions a second by 1, 16 and 64 goroutines that share one client, on a redis-server on loopback. It and the")
	p("benchmark share the cores of this machine. The floors are PING, and a script of INCR and PEXPIRE.\n")
	p("![Decisions a second](charts/redis.svg)\n")
	p("%s", redisTable(d))
	p("### Several limits\n")
	p("Microseconds for a decision on one, two and three limits. Ours is one script; the others ask for each in turn.\n")
	p("%s", redisLimitsTable(d))
	p("### Denied keys\n")
	p("Decisions a second on a hundred keys that have used up their limit, and how often Redis was asked for each.\n")
	p("%s", redisDeniedTable(d))
	p("### Round trips\n")
	p("For each decision, on one limit and on three: round trips of the network, scripts (or PINGs) that the server ran,")
	p("and commands, those inside scripts included.\n")
	p("%s", roundTripTable(d))
	p("### Size of a key in Redis\n")
	p("Bytes that used_memory grew by for each of 20,000 keys of one request, and what MEMORY USAGE says of one.\n")
	p("%s", redisSizeTable(d))
	p("### Cost against the limit\n")
	p("Microseconds for a decision by 16 goroutines, on keys that have half of the limit left and on keys that have none")
	p("(the deny cache is off).\n")
	p("![Cost against the limit](charts/limit.svg)\n")
	p("%s", limitTable(d))

	p("## Accuracy\n")
	p("The most that an adversary who knows where windows begin got through in any window of the configured length, at a")
	p("limit of 10, of some thousand ways to send two bursts, or a burst and a trickle; and how many of 64 goroutines at")
	p("once, all asking for one key, were admitted at a limit of 1,000. The time of those in memory is virtual, but for")
	p("go-limiter and gin-rate-limit; the others were given some dozen plans in real time,")
	p("and may admit more than was certainly seen.\n")
	p("![Most admitted in any window](charts/accuracy.svg)\n")
	p("%s", accuracyTable(d))
	return strings.TrimSpace(w.String()) + "\n"
}

// table is a Markdown table, of which all but the first column are numbers.
func table(head []string, rows [][]string) string {
	if len(rows) == 0 {
		return "Not measured.\n"
	}
	var w strings.Builder
	line := func(cells []string) { fmt.Fprintf(&w, "| %s |\n", strings.Join(cells, " | ")) }
	line(head)
	rule := []string{"---"}
	for range head[1:] {
		rule = append(rule, "---:")
	}
	line(rule)
	for _, row := range rows {
		line(row)
	}
	return w.String()
}

// cell is a number with its range.
func cell(n number) string {
	if n.missing {
		return "–"
	}
	if n.n < 6 {
		return plain(n) // too few for a range
	}
	return plain(n) + " " + n.spread
}

func plain(n number) string {
	if n.missing {
		return "–"
	}
	return digits(n.median)
}

// digits writes three significant ones, and thousands apart.
func digits(v float64) string {
	switch {
	case v < 0:
		return "-" + digits(-v)
	case v == float64(int64(v)) && v < 1000:
		return strconv.FormatInt(int64(v), 10)
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	text := fmt.Sprintf("%.0f", v)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func times(n number) string {
	if n.missing {
		return "–"
	}
	return fmt.Sprintf("%.2f", n.median)
}

// bold sets ours apart from the others.
func bold(name string) string {
	if isOurs(name) {
		return "**" + name + "**"
	}
	return name
}

func environmentTable(d *data) string {
	var rows [][]string
	var libraries []string
	for _, f := range d.environment {
		switch f[0] {
		case "library":
			libraries = append(libraries, f[1])
		case "command", "quick":
		default:
			rows = append(rows, []string{f[0], f[1]})
		}
	}
	rows = append(rows, []string{"Libraries", strings.Join(libraries, "<br>")})
	return strings.ReplaceAll(table([]string{"", ""}, rows), "---:", "---")
}
