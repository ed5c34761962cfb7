package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"
)

// line is one figure of the report.
type line struct {
	Bench  string  `json:"bench"`
	Figure string  `json:"figure"`
	Unit   string  `json:"unit"`
	Floor  float64 `json:"floor,omitempty"` // 0: there is no floor, and celld's own figure is judged
	Celld  float64 `json:"celld"`
	Ratio  float64 `json:"ratio,omitempty"`
	Low    float64 `json:"low,omitempty"`
	High   float64 `json:"high,omitempty"`
	Bound  string  `json:"bound,omitempty"`
	Met    bool    `json:"met"`
	Note   string  `json:"note,omitempty"` // instead of figures: why there are none
}

// report collects lines and prints them as they come.
type report struct {
	w     io.Writer
	lines []line
}

func (r *report) head(name, what string) {
	fmt.Fprintf(r.w, "\n%s: %s\n", name, what)
}

// compared adds a figure that has a floor; g bounds the ratio.
func (r *report) compared(bench, figure, unit string, s summary, g goal) {
	r.add(line{Bench: bench, Figure: figure, Unit: unit, Floor: s.floor, Celld: s.celld,
		Ratio: s.ratio, Low: s.low, High: s.high, Bound: boundText(g, "×"), Met: g.met(s.ratio)})
}

// single adds a figure of celld alone; g bounds it, in the same unit.
func (r *report) single(bench, figure, unit string, x float64, g goal) {
	r.add(line{Bench: bench, Figure: figure, Unit: unit, Celld: x, Bound: boundText(g, unit), Met: g.met(x)})
}

// missing says why a benchmark has no figures.
func (r *report) missing(bench, why string) { r.add(line{Bench: bench, Met: true, Note: why}) }

// failed says that a benchmark found something wrong; it counts as not met.
func (r *report) failed(bench string, err error) {
	r.add(line{Bench: bench, Note: "FAILED: " + err.Error()})
}

func (r *report) add(l line) {
	for _, x := range []*float64{&l.Floor, &l.Celld, &l.Ratio, &l.Low, &l.High} {
		if math.IsNaN(*x) || math.IsInf(*x, 0) {
			*x = 0 // JSON has no such numbers; Met has been decided
		}
	}
	r.lines = append(r.lines, l)
	fmt.Fprintln(r.w, l.String())
}

// String is the line as people read it.
func (l line) String() string {
	if l.Note != "" {
		return fmt.Sprintf("  %-26s %s", l.Figure, l.Note)
	}
	verdict := ""
	if l.Bound != "" {
		verdict = "met"
		if !l.Met {
			verdict = "NOT MET"
		}
	}
	if l.Floor == 0 {
		return fmt.Sprintf("  %-26s %37s celld %11s  %-16s %s", l.Figure, "", amount(l.Celld, l.Unit), l.Bound, verdict)
	}
	ratio := fmt.Sprintf("%.2f × (%.2f–%.2f)", l.Ratio, l.Low, l.High)
	return fmt.Sprintf("  %-26s floor %11s %-19s celld %11s  %-16s %s",
		l.Figure, amount(l.Floor, l.Unit), ratio, amount(l.Celld, l.Unit), l.Bound, verdict)
}

func boundText(g goal, unit string) string {
	if g.op == "" {
		return ""
	}
	if unit == "ms" {
		return g.op + " " + amount(g.bound, unit)
	}
	return strings.TrimSpace(fmt.Sprintf("%s %g %s", g.op, g.bound, unit))
}

// amount prints x, which is in seconds where the unit is ms.
func amount(x float64, unit string) string {
	switch unit {
	case "ms":
		return fmt.Sprintf("%.2f ms", x*1e3)
	case "":
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.1f %s", x, unit)
}

// unmet returns the lines whose bound isn't kept.
func (r *report) unmet() []line {
	var all []line
	for _, l := range r.lines {
		if !l.Met {
			all = append(all, l)
		}
	}
	return all
}

// summary prints the last lines.
func (r *report) summary(took time.Duration) {
	bounds := 0
	for _, l := range r.lines {
		if l.Bound != "" {
			bounds++
		}
	}
	all := r.unmet()
	fmt.Fprintf(r.w, "\n%d bounds, %d not met, in %s\n", bounds, len(all), took.Round(time.Second))
	for _, l := range all {
		fmt.Fprintf(r.w, "not met: %s %s %s\n", l.Bench, l.Figure, l.Note)
	}
}

func (r *report) writeJSON(name string) error {
	text, err := json.MarshalIndent(r.lines, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o644)
}
