package main

import (
	"math"
	"testing"
)

func TestQuantileIsTheNearestRank(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i) // not in order
	}
	for _, c := range []struct {
		samples []float64
		q, want float64
	}{
		{hundred, 0.5, 50}, {hundred, 0.99, 99}, {hundred, 1, 100}, {hundred, 0.001, 1},
		{[]float64{7}, 0.99, 7}, {[]float64{3, 1, 2}, 0.5, 2}, {[]float64{1, 2}, 0.51, 2},
	} {
		if got := quantile(c.samples, c.q); got != c.want {
			t.Errorf("quantile(%d samples, %v) = %v, want %v", len(c.samples), c.q, got, c.want)
		}
	}
	if hundred[0] != 100 {
		t.Error("quantile has sorted its argument")
	}
	if !math.IsNaN(quantile(nil, 0.5)) {
		t.Error("a quantile of nothing is not NaN")
	}
}

func TestMedianIsTheMiddle(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		want    float64
	}{{[]float64{3, 1, 2}, 2}, {[]float64{4, 1, 3, 2}, 2.5}, {[]float64{5}, 5}} {
		if got := median(c.samples); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.samples, got, c.want)
		}
	}
	if !math.IsNaN(median(nil)) {
		t.Error("a median of nothing is not NaN")
	}
}

func TestRatiosAreTakenRoundByRound(t *testing.T) {
	// In the second round the machine was ten times slower: the ratios don't notice.
	got := summarise([]float64{1, 10, 2}, []float64{2, 11, 3})
	want := summary{floor: 2, celld: 3, ratio: 1.5, low: 1.1, high: 2}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestGoals(t *testing.T) {
	for _, c := range []struct {
		g    goal
		x    float64
		want bool
	}{
		{atMost(2), 2, true}, {atMost(2), 2.01, false}, {atLeast(0.9), 0.9, true}, {atLeast(0.9), 0.89, false},
		{goal{}, 1e9, true}, {atMost(2), math.NaN(), false}, {atLeast(2), math.NaN(), false},
	} {
		if got := c.g.met(c.x); got != c.want {
			t.Errorf("%v %v %v: %v", c.x, c.g.op, c.g.bound, got)
		}
	}
}
