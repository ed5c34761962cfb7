package shellrun

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/celld/celld/internal/proctree"
)

// BenchmarkCommand compares a command that does nothing, and one that writes much, with os/exec doing the same: the two take turns, so
// that both see the same machine. The ratios are of the medians and of the tenth percentiles.
func BenchmarkCommand(b *testing.B) {
	for name, text := range map[string]string{"true": "true", "100 MB": `head -c 100000000 /dev/zero`} {
		b.Run(name, func(b *testing.B) {
			r := Runner{Workspace: "/", Env: proctree.BaseEnv(os.Environ())}
			var ours, floor []time.Duration
			for b.Loop() {
				ours = append(ours, timed(b, func() error {
					p, err := r.Prepare(Command{ID: "bench", Text: text, Stdout: new(counter), Stderr: new(counter)})
					if err != nil {
						return err
					}
					_, err = p.Run(b.Context())
					return err
				}))
				floor = append(floor, timed(b, func() error {
					cmd := exec.Command("bash", "-c", text)
					cmd.Stdout, cmd.Stderr = struct{ io.Writer }{new(counter)}, new(bytes.Buffer)
					return cmd.Run()
				}))
			}
			slices.Sort(ours)
			slices.Sort(floor)
			for q, name := range map[int]string{2: "p50", 10: "p10"} {
				b.ReportMetric(float64(ours[len(ours)/q])/float64(floor[len(floor)/q]), name+"-ratio")
			}
		})
	}
}

type counter int

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }

func timed(b *testing.B, f func() error) time.Duration {
	start := time.Now()
	if err := f(); err != nil {
		b.Fatal(err)
	}
	return time.Since(start)
}
