package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// The colours can be read on white and on black alike.
const (
	inkColour  = "#7d858f"
	gridColour = "#7d858f40"
)

var (
	oursColours  = []string{"#2f81f7", "#1f9d8f", "#8957e5", "#d6467e"}
	otherColours = []string{"#9aa3ad", "#c08a3e", "#7f9a52", "#b0705f", "#6f8fb0"}
)

// A barChart has a group of horizontal bars for each label.
type barChart struct {
	title     string
	series    []string
	bars      []bar
	mark      float64 // a line across all bars; 0 for none
	markLabel string
}

type bar struct {
	label  string
	ours   bool
	values []float64 // one for each series; NaN where there is none
}

const (
	chartWidth  = 900
	labelWidth  = 255
	valueWidth  = 70
	barHeight   = 10
	groupMargin = 8
	titleHeight = 62
)

func (c barChart) svg() string {
	c.bars = slices.DeleteFunc(c.bars, func(b bar) bool { return !slices.ContainsFunc(b.values, isNumber) })
	group := barHeight*len(c.series) + groupMargin
	if len(c.series) == 1 {
		group += 6
	}
	height := titleHeight + group*len(c.bars) + 24
	most := c.mark
	for _, b := range c.bars {
		for _, v := range b.values {
			if isNumber(v) {
				most = max(most, v)
			}
		}
	}
	scale := (chartWidth - labelWidth - valueWidth) / max(most, 1e-9)

	w := newSVG(chartWidth, height, c.title)
	w.legend(c.series, shade)
	y := titleHeight
	for _, b := range c.bars {
		weight := "normal"
		colour := otherColours[0]
		if b.ours {
			weight, colour = "bold", oursColours[0]
		}
		w.text(labelWidth-8, float64(y)+float64(group-groupMargin)/2+4, "end", weight, b.label)
		for i, v := range b.values {
			if !isNumber(v) {
				continue
			}
			thick := (group - groupMargin) / len(c.series)
			top := y + i*thick
			w.add(`<rect x="%d" y="%d" width="%.1f" height="%d" rx="1" fill="%s" fill-opacity="%s"/>`, labelWidth, top, max(0, v)*scale, thick-1, colour, shade(i))
			w.small(labelWidth+max(0, v)*scale+4, float64(top+thick)-1, digits(v))
		}
		y += group
	}
	if c.mark > 0 {
		x := labelWidth + c.mark*scale
		w.add(`<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#d1493f" stroke-dasharray="4 3"/>`, x, titleHeight-6, x, y)
		w.text(x, float64(y)+14, "middle", "normal", c.markLabel)
	}
	return w.end()
}

// shade tells the bars of a group apart, whatever their colour.
func shade(i int) string { return []string{"1", "0.7", "0.45"}[i%3] }

// A lineChart has equal steps from tick to tick.
type lineChart struct {
	title string
	ticks []string
	lines []line
}

type line struct {
	label        string
	ours, dashed bool
	values       []float64
}

func (c lineChart) svg() string {
	const height, left, right, bottom = 430, 70, 320, 30
	c.lines = slices.DeleteFunc(c.lines, func(l line) bool { return !slices.ContainsFunc(l.values, isNumber) })
	most := 0.0
	for _, l := range c.lines {
		for _, v := range l.values {
			if isNumber(v) {
				most = max(most, v)
			}
		}
	}
	step, top := niceStep(most)
	x := func(i int) float64 {
		return left + float64(i)*(chartWidth-left-right)/float64(max(1, len(c.ticks)-1))
	}
	y := func(v float64) float64 { return height - bottom - v/top*(height-bottom-50) }

	w := newSVG(chartWidth, height, c.title)
	for v := 0.0; v <= top*1.001; v += step {
		w.add(`<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="%s"/>`, left, y(v), chartWidth-right, y(v), gridColour)
		w.text(left-8, y(v)+4, "end", "normal", digits(v))
	}
	for i, tick := range c.ticks {
		w.text(x(i), height-bottom+18, "middle", "normal", tick)
	}
	colours := map[string]string{} // one for a limiter, whatever its client
	ours, others := 0, 0
	for i, l := range c.lines {
		name, _, _ := strings.Cut(l.label, ",")
		colour, known := colours[name]
		switch {
		case known:
		case l.ours:
			colour = oursColours[ours%len(oursColours)]
			ours++
		default:
			colour = otherColours[others%len(otherColours)]
			others++
		}
		colours[name] = colour
		style := `stroke-width="1.8"`
		if l.dashed {
			style += ` stroke-dasharray="6 4"`
		}
		var points []string
		for j, v := range l.values {
			if isNumber(v) {
				points = append(points, fmt.Sprintf("%.1f,%.1f", x(j), y(v)))
				w.add(`<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s"/>`, x(j), y(v), colour)
			}
		}
		w.add(`<polyline points="%s" fill="none" stroke="%s" %s/>`, strings.Join(points, " "), colour, style)
		row := 56 + 19*i
		w.add(`<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" %s/>`, chartWidth-right+16, row-4, chartWidth-right+40, row-4, colour, style)
		w.text(chartWidth-right+46, float64(row), "start", "normal", l.label)
	}
	return w.end()
}

// niceStep divides 0 to most into some round steps, and says where they end.
func niceStep(most float64) (step, top float64) {
	if most <= 0 {
		return 1, 1
	}
	step = math.Pow(10, math.Floor(math.Log10(most)))
	for most/step < 4 {
		step /= 2
	}
	return step, math.Ceil(most/step) * step
}

func isNumber(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// svgWriter puts a picture together.
type svgWriter struct{ strings.Builder }

func newSVG(width, height int, title string) *svgWriter {
	w := &svgWriter{}
	w.add(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="system-ui, sans-serif" font-size="12" fill="%s" role="img">`, width, height, width, height, inkColour)
	w.add(`<title>%s</title>`, html.EscapeString(title))
	w.add(`<text x="10" y="22" font-size="15" font-weight="bold">%s</text>`, html.EscapeString(title))
	return w
}

func (w *svgWriter) add(format string, args ...any) {
	_, _ = fmt.Fprintf(w, format+"\n", args...)
}

func (w *svgWriter) text(x, y float64, anchor, weight, text string) {
	w.add(`<text x="%.1f" y="%.1f" text-anchor="%s" font-weight="%s">%s</text>`, x, y, anchor, weight, html.EscapeString(text))
}

func (w *svgWriter) small(x, y float64, text string) {
	w.add(`<text x="%.1f" y="%.1f" font-size="9">%s</text>`, x, y, html.EscapeString(text))
}

// legend names the series of a bar chart, where there are several.
func (w *svgWriter) legend(series []string, opacity func(i int) string) {
	if len(series) < 2 {
		return
	}
	x := labelWidth
	for i, name := range series {
		w.add(`<rect x="%d" y="35" width="11" height="11" fill="%s" fill-opacity="%s"/>`, x, oursColours[0], opacity(i))
		w.text(float64(x+16), 45, "start", "normal", name)
		x += 130
	}
}

func (w *svgWriter) end() string {
	w.add(`</svg>`)
	return w.String()
}
