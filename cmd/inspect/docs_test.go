package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

const docs = "../../docs/inspect.md"

// TestDocs keeps docs/inspect.md equal to the help texts; with -update it writes
// the file.
func TestDocs(t *testing.T) {
	a := &app{stdout: bufio.NewWriter(nil), stderr: &escaper{}}
	root := a.root()
	var b strings.Builder
	b.WriteString("<!-- Written by go test ./cmd/inspect -run TestDocs -update, from the help texts. -->\n\n")
	document(&b, root)
	want := b.String()
	if *update {
		if err := os.MkdirAll("../../docs", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(docs, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s differs from the help texts; go test ./cmd/inspect -run TestDocs -update", docs)
	}
}

// document writes a section for cmd and each command beneath it.
func document(b *strings.Builder, cmd *cobra.Command) {
	level := "##"
	if !cmd.HasParent() {
		level = "#"
	}
	fmt.Fprintf(b, "%s %s\n\n", level, cmd.CommandPath())
	if cmd.Runnable() {
		fmt.Fprintf(b, "    %s\n\n", cmd.UseLine())
	}
	fmt.Fprintf(b, "%s\n\n", strings.TrimSpace(cmd.Long))
	if cmd.Example != "" {
		b.WriteString("Examples:\n\n")
		for line := range strings.Lines(cmd.Example) {
			fmt.Fprintf(b, "  %s\n", strings.TrimRight(line, "\n"))
		}
		b.WriteString("\n")
	}
	if flags := cmd.LocalFlags().FlagUsages(); flags != "" {
		title := "Flags:"
		if !cmd.HasParent() {
			title = "Flags of every command:"
		}
		fmt.Fprintf(b, "%s\n\n", title)
		for line := range strings.Lines(flags) {
			fmt.Fprintf(b, "  %s\n", strings.TrimRight(line, "\n"))
		}
		b.WriteString("\n")
	}
	for _, child := range cmd.Commands() {
		if child.Name() != "help" && child.Name() != "completion" { // cobra's own
			document(b, child)
		}
	}
}

// TestHelp holds every command to what the tool promises of its help.
func TestHelp(t *testing.T) {
	a := &app{stdout: bufio.NewWriter(nil), stderr: &escaper{}}
	for _, cmd := range a.root().Commands() {
		if cmd.Name() == "help" || cmd.Name() == "completion" {
			continue
		}
		for what, missing := range map[string]bool{
			"a short text":          cmd.Short == "",
			"a long text":           len(cmd.Long) < 80,
			"an example":            !strings.Contains(cmd.Example, "inspect "+cmd.Name()),
			"the shape of its JSON": !strings.Contains(cmd.Long, "\nJSON:\n\n    "),
			"a completion":          cmd.ValidArgsFunction == nil,
		} {
			if missing {
				t.Errorf("%s lacks %s", cmd.CommandPath(), what)
			}
		}
		for line := range strings.Lines(cmd.Long + "\n" + cmd.Example) {
			if len(line) > 84 {
				t.Errorf("%s: too long for a terminal: %s", cmd.CommandPath(), line)
			}
		}
	}
}
