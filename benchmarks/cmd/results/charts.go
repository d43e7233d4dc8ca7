package main

import (
	"os"
	"path/filepath"
	"strconv"
)

// writeCharts writes what the numbers are for into dir.
func writeCharts(d *data, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, svg := range map[string]string{
		"memory.svg":   memoryChart(d),
		"growth.svg":   growthChart(d),
		"gin.svg":      ginChart(d),
		"redis.svg":    redisChart(d),
		"limit.svg":    limitChart(d),
		"accuracy.svg": accuracyChart(d),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(svg), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func memoryChart(d *data) string {
	c := barChart{title: "Decisions in memory, 2 cores: nanoseconds each (less is better)", series: []string{"one hot key", "100,000 keys", "1,000,000 keys"}}
	for _, name := range d.names["Memory"] {
		b := bar{label: name, ours: isOurs(name)}
		for _, s := range memoryScenarios[:3] {
			b.values = append(b.values, d.at(s.benchmark, s.params+"limiter="+name, 2, "ns/op").median)
		}
		c.bars = append(c.bars, b)
	}
	return c.svg()
}

func ginChart(d *data) string {
	c := barChart{title: "What a middleware adds to a Gin request: nanoseconds (less is better)", series: []string{"allowed", "denied"}}
	for _, name := range d.names["Gin"] {
		if isFloor(name) {
			continue
		}
		c.bars = append(c.bars, bar{label: name, ours: isOurs(name), values: []float64{
			ginAdds(d, name, "allowed", "ns/op").median, ginAdds(d, name, "denied", "ns/op").median,
		}})
	}
	return c.svg()
}

func accuracyChart(d *data) string {
	c := barChart{title: "Most admitted in any window by an adversary, at a limit of 10 (less is better)", series: []string{"requests"}, mark: 10, markLabel: "limit"}
	for _, r := range accuracyRows(d) {
		c.bars = append(c.bars, bar{label: r.label, ours: r.ours, values: []float64{r.most.median}})
	}
	return c.svg()
}

func growthChart(d *data) string {
	c := lineChart{title: "Nanoseconds for a decision against the number of keys, 1 core (less is better)"}
	for _, keys := range growthKeys {
		c.ticks = append(c.ticks, digits(float64(keys)))
	}
	for _, name := range d.names["Memory"] {
		if !isOurs(name) && !isFloor(name) {
			continue
		}
		l := line{label: name, ours: isOurs(name)}
		for _, keys := range growthKeys {
			l.values = append(l.values, growthAt(d, name, keys).median)
		}
		c.lines = append(c.lines, l)
	}
	return c.svg()
}

func redisChart(d *data) string {
	c := lineChart{title: "Decisions a second on Redis against goroutines (more is better)"}
	goroutines := []int{1, 16, 64}
	for _, n := range goroutines {
		c.ticks = append(c.ticks, strconv.Itoa(n))
	}
	for _, client := range []string{"plain", "autopipeline"} {
		for _, name := range d.names["Redis"] {
			if client != "plain" && !isOurs(name) {
				continue
			}
			l := line{label: name, ours: isOurs(name), dashed: client != "plain"}
			if l.dashed {
				l.label += ", AutoPipeline"
			}
			for _, n := range goroutines {
				l.values = append(l.values, redisAt(d, name, client, n).median)
			}
			c.lines = append(c.lines, l)
		}
	}
	return c.svg()
}

func limitChart(d *data) string {
	c := lineChart{title: "Microseconds for a decision on Redis against the limit (less is better)"}
	for _, limit := range limitsMeasured {
		c.ticks = append(c.ticks, digits(float64(limit)))
	}
	for _, name := range d.names["RedisLimit"] {
		l := line{label: name, ours: true}
		for _, limit := range limitsMeasured {
			l.values = append(l.values, limitAt(d, name, "allowed", limit).median)
		}
		c.lines = append(c.lines, l)
	}
	return c.svg()
}
