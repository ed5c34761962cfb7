// Command celld-gokernel is a Jupyter kernel for Go that needs no Go: see package gokernel.
//
//	celld-gokernel CONNECTION_FILE
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/celld/celld/jupyter/gokernel"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: celld-gokernel CONNECTION_FILE")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := gokernel.Serve(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "celld-gokernel:", err)
		os.Exit(1)
	}
}
