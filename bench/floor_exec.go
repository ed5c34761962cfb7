package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os/exec"
)

// execJob is the floor without any transport: os/exec.
func execJob(j job) (result, error) {
	switch j.Op {
	case "run": // nothing to read: the least that a command costs
		return timed(j.Clients, j.N, func(int) error { return exec.Command("bash", "-c", j.Text).Run() })
	case "output": // both streams are read, apart
		return timed(j.Clients, j.N, func(int) error {
			var stdout, stderr bytes.Buffer
			cmd := exec.Command("bash", "-c", j.Text)
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			return cmd.Run()
		})
	case "shell": // a bare bash, until it has answered once
		return timed(j.Clients, j.N, func(int) error { return startShell() })
	}
	return result{}, fmt.Errorf("no job %q", j.Op)
}

func startShell() error {
	cmd := exec.Command("bash", "--norc", "--noprofile")
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if _, err := io.WriteString(in, "echo alive\n"); err != nil {
		return err
	}
	said, err := bufio.NewReader(out).ReadString('\n')
	if err == nil && said != "alive\n" {
		err = fmt.Errorf("the shell said %q", said)
	}
	in.Close()
	go cmd.Wait() // its end isn't part of the start
	return err
}
