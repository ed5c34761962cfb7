package jupyter

import (
	"slices"
	"testing"
	"time"
)

// samples are times of the same thing.
type samples []time.Duration

func (s *samples) time(f func()) {
	start := time.Now()
	f()
	*s = append(*s, time.Since(start))
}

// at is the quantile q.
func (s samples) at(q float64) time.Duration {
	s = slices.Clone(s)
	slices.Sort(s)
	return s[int(q*float64(len(s)-1))]
}

// report says how ours compares with the floor.
func report(b *testing.B, ours, floor samples) {
	b.ReportMetric(float64(ours.at(0.5))/float64(floor.at(0.5)), "p50-ratio")
	b.ReportMetric(float64(ours.at(0.99))/float64(floor.at(0.99)), "p99-ratio")
	b.ReportMetric(float64(ours.at(0.5))/1e6, "p50-ms")
	b.ReportMetric(float64(floor.at(0.5))/1e6, "floor-p50-ms")
}
