package main

import (
	"math"
	"slices"
)

// quantile returns the smallest sample that at least q of all samples don't exceed (nearest rank), 0 < q ≤ 1.
// Without samples it is NaN.
func quantile(samples []float64, q float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(samples))
	return s[max(int(math.Ceil(q*float64(len(s)))), 1)-1]
}

// median returns the middle sample, or the mean of the two in the middle. Without samples it is NaN.
func median(samples []float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(samples))
	m := len(s) / 2
	if len(s)%2 == 1 {
		return s[m]
	}
	return (s[m-1] + s[m]) / 2
}

// summary is what the rounds of one figure come to.
type summary struct {
	floor, celld float64 // medians of the rounds
	ratio        float64 // median of the rounds' ratios celld/floor
	low, high    float64 // the smallest and the largest of those ratios
}

// summarise needs as many rounds of the floor as of celld: what was measured side by side is divided side by side, so
// that a slow minute of the machine doesn't count.
func summarise(floor, celld []float64) summary {
	ratios := make([]float64, len(celld))
	for i := range celld {
		ratios[i] = celld[i] / floor[i]
	}
	return summary{median(floor), median(celld), median(ratios), quantile(ratios, 1e-9), quantile(ratios, 1)}
}

// goal is a bound that an issue of a figure must keep. The zero goal is none.
type goal struct {
	op    string // "≤", "≥" or ""
	bound float64
}

func atMost(x float64) goal  { return goal{"≤", x} }
func atLeast(x float64) goal { return goal{"≥", x} }

// met says whether x keeps the bound. NaN keeps none.
func (g goal) met(x float64) bool {
	switch g.op {
	case "≤":
		return x <= g.bound
	case "≥":
		return x >= g.bound
	}
	return true
}
