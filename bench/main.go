// Command bench measures celld against its floors: the smallest honest programs that do the same work over the same
// transport without celld. README.md says how to read the report.
//
//	go run ./bench -run command -rounds 5
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) > 2 && os.Args[1] == "floor" {
		if err := serveFloor(os.Args[2], os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, "floor", os.Args[2]+":", err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.Func("run", "run the benchmarks whose name matches this `regexp`", func(s string) (err error) {
		o.filter, err = regexp.Compile(s)
		return err
	})
	flag.IntVar(&o.rounds, "rounds", 5, "how often celld and its floor take turns")
	flag.BoolVar(&o.short, "short", false, "fewer samples, less data")
	flag.BoolVar(&o.long, "long", false, "the whole slow reader and ten minutes of mixed load")
	flag.StringVar(&o.json, "json", "", "write the report to this `file` as well, as JSON")
	flag.BoolVar(&o.check, "check", false, "exit with status 1 when a bound is not met")
	flag.Parse()
	met, err := o.run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	if o.check && !met {
		os.Exit(1)
	}
}

// benchLimit is how long one benchmark may take: longer than the longest.
const benchLimit = 20 * time.Minute

type options struct {
	filter      *regexp.Regexp
	rounds      int
	short, long bool
	json        string
	check       bool
}

// run runs the chosen benchmarks and says whether every bound was met.
func (o *options) run() (bool, error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// Whatever celld leaves behind becomes ours and is found.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return false, fmt.Errorf("become a subreaper: %w", err)
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return false, err
	}
	dir, err := os.MkdirTemp("", "celld-bench-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	celld, err := copyCelld(ctx, root, dir)
	if err != nil {
		return false, err
	}
	rep, began := &report{w: os.Stdout}, time.Now()
	for _, b := range benchmarks() {
		if o.filter != nil && !o.filter.MatchString(b.name) {
			continue
		}
		rep.head(b.name, b.what)
		r := &run{options: o, bench: b, root: root, binary: celld, report: rep}
		limited, cancel := context.WithTimeoutCause(ctx, benchLimit, fmt.Errorf("it took more than %v", benchLimit))
		if err := r.do(limited); err != nil {
			rep.failed(b.name, err)
		}
		cancel()
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
	}
	rep.summary(time.Since(began))
	if o.json != "" {
		if err := rep.writeJSON(o.json); err != nil {
			return false, err
		}
	}
	return len(rep.unmet()) == 0, nil
}
