//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// inGroup starts the command in a process group of its own. So an interrupt
// reaches it once, from us, and not also from the terminal, and it reaches the
// command's children, which would otherwise go on writing.
func inGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
}

// endGroup kills what is left of the group.
func endGroup(cmd *exec.Cmd) {
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
}
