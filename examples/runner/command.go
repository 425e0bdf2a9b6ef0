package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

const (
	maxOutput = 1 << 20          // bytes of a command's output that its checkpoint keeps
	grace     = 10 * time.Second // how long an interrupted command may take to stop
)

// execute runs a command in dir, shows what it prints and returns that. When ctx
// ends, because of Ctrl-C or because the lease is lost, the command is
// interrupted, and killed if that does not help.
func execute(ctx context.Context, dir string, command []string) (string, error) {
	var output recorder
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = dir
	cmd.Stdout = io.MultiWriter(os.Stdout, &output)
	cmd.Stderr = io.MultiWriter(os.Stderr, &output)
	cmd.WaitDelay = grace
	inGroup(cmd)
	err := cmd.Run()
	endGroup(cmd) // nothing may write while the workspace is captured, or without the lease
	_, failed := errors.AsType[*exec.ExitError](err)
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("the command was stopped, so there is no checkpoint: %w", context.Cause(ctx))
	case failed:
		return "", fmt.Errorf("the command failed, so there is no checkpoint; rewind takes back what it did: %w", err)
	case err != nil && !errors.Is(err, exec.ErrWaitDelay): // that is success, with something left running
		return "", err
	}
	return output.String(), nil
}

// recorder keeps the beginning of what a command prints on both its outputs.
type recorder struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buf.Write(p[:min(len(p), maxOutput-r.buf.Len())])
	return len(p), nil
}

func (r *recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.String()
}
