package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// A floor is this program again, in a process of its own. It says that it is ready, does the jobs that come as JSON on
// its standard input, one after the other, and ends with it.

// job asks a floor for measurements.
type job struct {
	Op      string
	Text    string // a command or a cell
	N       int    // how often, all clients together
	Clients int
	Kernel  string // of a Jupyter floor: the kernelspec; empty: Python's
}

// result answers a job.
type result struct {
	Address string    // the first answer of an HTTP floor
	Seconds []float64 // one for each of N
	Total   float64   // seconds for all of them
	Bytes   int64     // of output
	Error   string
}

// serveFloor is the floor's process.
func serveFloor(kind string, args []string) error {
	var do func(job) (result, error)
	ready := result{}
	switch kind {
	case "http":
		address, err := serveHTTPFloor()
		if err != nil {
			return err
		}
		ready.Address = address
	case "proxy":
		if len(args) != 1 {
			return errors.New("needs an app's URL")
		}
		address, err := serveProxyFloor(args[0])
		if err != nil {
			return err
		}
		ready.Address = address
	case "sql":
		if len(args) != 1 {
			return errors.New("needs a DSN")
		}
		address, err := serveSQLFloor(args[0])
		if err != nil {
			return err
		}
		ready.Address = address
	case "mariadbd":
		do = mariadbdJob
	case "exec":
		do = execJob
	case "jupyter":
		if len(args) != 3 {
			return errors.New("needs a python, the script that starts a Jupyter Server and a directory")
		}
		f, err := startJupyter(args[0], args[1], args[2])
		if err != nil {
			return err
		}
		defer f.stop()
		do = f.job
	default:
		return errors.New("there is no such floor")
	}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	if err := out.Encode(ready); err != nil {
		return err
	}
	for {
		var j job
		if err := in.Decode(&j); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		r, err := do(j)
		if err != nil {
			r.Error = err.Error()
		}
		if err := out.Encode(r); err != nil {
			return err
		}
	}
}

// timed runs f n times from a number of clients at once and takes the times.
func timed(clients, n int, f func(client int) error) (result, error) {
	seconds := make([][]float64, clients)
	began := time.Now()
	err := together(clients, func(i int) error {
		for range n / clients {
			start := time.Now()
			if err := f(i); err != nil {
				return err
			}
			seconds[i] = append(seconds[i], time.Since(start).Seconds())
		}
		return nil
	})
	r := result{Total: time.Since(began).Seconds()}
	for _, s := range seconds {
		r.Seconds = append(r.Seconds, s...)
	}
	return r, err
}

// floor is the benchmark's end of a floor's process.
type floor struct {
	*peer // of an HTTP floor
	in    io.WriteCloser
	out   *json.Decoder
	cmd   *exec.Cmd
}

func (r *run) floor(kind string, args ...string) (*floor, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	f := &floor{cmd: exec.Command(self, append([]string{"floor", kind}, args...)...)}
	f.cmd.Stderr, f.cmd.Dir = os.Stderr, r.dir
	if f.in, err = f.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	f.out = json.NewDecoder(out)
	if err := f.cmd.Start(); err != nil {
		return nil, err
	}
	r.cleanup = append(r.cleanup, f.stop)
	ready, err := f.answer()
	if err != nil {
		return nil, err
	}
	if ready.Address != "" {
		f.peer = newPeer("http://"+ready.Address, false)
	}
	return f, nil
}

func (f *floor) answer() (result, error) {
	var r result
	if err := f.out.Decode(&r); err != nil {
		return r, fmt.Errorf("the floor has ended: %w", err)
	}
	if r.Error != "" {
		return r, errors.New(r.Error)
	}
	return r, nil
}

// do has one job done.
func (f *floor) do(j job) (result, error) {
	if err := json.NewEncoder(f.in).Encode(j); err != nil {
		return result{}, err
	}
	return f.answer()
}

func (f *floor) stop() error {
	f.in.Close()
	if f.peer != nil {
		f.http.CloseIdleConnections()
	}
	if err := f.cmd.Wait(); err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	return nil
}

// latencies takes the floor's times of j, one after the other.
func (f *floor) latencies(j job) side {
	return func(_ context.Context, n int) ([]float64, error) {
		j.N, j.Clients = n, 1
		r, err := f.do(j)
		return r.Seconds, err
	}
}

// perSecond takes the rate at which the floor's clients do j together: one sample at a time.
func (f *floor) perSecond(j job) side {
	return func(_ context.Context, n int) ([]float64, error) {
		var got []float64
		for range n {
			r, err := f.do(j)
			if err != nil {
				return nil, err
			}
			got = append(got, float64(len(r.Seconds))/r.Total)
		}
		return got, nil
	}
}
