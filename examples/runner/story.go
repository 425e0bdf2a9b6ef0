package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"checkpointdb"
	"checkpointdb/buckets"
	"checkpointdb/workspace"
)

// act is the agent of the story. To the runner it is a command like any other;
// it is part of this program only so that the story runs on every system.
func act(scene string) error {
	page := filepath.Join("site", "index.html")
	write := func(path, text string, mode os.FileMode) error {
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			return err
		}
		return os.WriteFile(path, []byte(text), mode)
	}
	switch scene {
	case "build":
		link := os.Symlink(page, "latest")
		if runtime.GOOS == "windows" {
			link = nil // takes a privilege there
		}
		fmt.Println("I made a page with a style sheet, a script to deploy it, a link to it and a directory for logs.")
		return errors.Join(link,
			write(page, "<h1>Helo</h1>\n", 0o666),
			write(filepath.Join("site", "style.css"), "h1 { color: teal }\n", 0o666),
			write("deploy", "#!/bin/sh\necho deployed\n", 0o777),
			os.Mkdir("logs", 0o777))
	case "correct":
		fmt.Println("I corrected the page and wrote another one.")
		return errors.Join(
			write(page, "<h1>Hello</h1>\n", 0o666),
			write(filepath.Join("site", "about.html"), "<h1>About</h1>\n", 0o666))
	case "crash":
		fmt.Println("I was half way through the page when")
		if err := write(page, "<h1>He", 0o666); err != nil {
			return err
		}
		os.Exit(3)
	case "wreck":
		fmt.Println("I tidied up. All files are gone.")
		entries, err := os.ReadDir(".")
		for _, e := range entries {
			err = errors.Join(err, os.RemoveAll(e.Name()))
		}
		return errors.Join(err, write("sorry.txt", "I am sorry.\n", 0o666))
	case "translate":
		fmt.Println("I translated the page.")
		return write(page, "<h1>Bonjour</h1>\n", 0o666)
	}
	return usageError(fmt.Sprintf("the agent cannot %q", scene))
}

// story tells what it does, does it in child processes, and looks for itself
// whether it is true. Its first failure ends it: err is set, and what follows
// does nothing.
type story struct {
	ctx   context.Context
	self  string                             // this program
	dir   string                             // where everything happens
	trees map[checkpointdb.CheckpointID]tree // the workspace as each captured it
	step  int
	err   error
}

func tellStory(ctx context.Context, project string) (err error) {
	s := &story{ctx: ctx, trees: map[checkpointdb.CheckpointID]tree{}}
	if s.self, err = os.Executable(); err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "runner-story-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.dir)) }()

	fmt.Println(`Below, "runner" is this program with the flags -db store.db -blobs blobs, each time a process of
its own, and "agent" is a program that plays the agent. Lines with "|" are what they print, and lines
with "ok:" are claims that were checked.`)
	place := "an empty directory"
	if project != "" {
		place = "a copy of a project"
		if err := os.CopyFS(s.path("work"), os.DirFS(project)); err != nil {
			return err
		}
	}

	s.tell("An agent starts to work in %s. When it is done, its work becomes a checkpoint.", place)
	s.runner(0, "-workspace work -thread main -- agent build")
	s.captured("main", "main@1", "work")

	s.tell("It goes on. The second checkpoint stores only what is new.")
	s.runner(0, "-workspace work -thread main -- agent correct")
	s.captured("main", "main@2", "work")
	s.claim(s.uses("main@2", "site/style.css") == 2, "site/style.css is one blob, which both checkpoints use")

	s.tell("It crashes. The exit code is the agent's and there is no checkpoint, but the workspace has suffered.")
	s.runner(3, "-workspace work -thread main -- agent crash")
	s.claim(s.head("main").ID == "main@2", "the head is still main@2")
	s.claim(!s.equal("work", "main@2"), "the workspace differs from main@2")
	s.runner(0, "-workspace work -thread main rewind")
	s.claim(s.equal("work", "main@2"), "the workspace is again what main@2 captured")

	s.tell("It does harm and reports success, so there is a checkpoint of the harm. Undo drops that.")
	s.runner(0, "-workspace work -thread main -- agent wreck")
	s.captured("main", "main@4", "work")
	s.claim(len(s.trees["main@4"]) == 1, "one file is left")
	s.runner(0, "-workspace work -thread main undo")
	s.claim(s.head("main").ID == "main@2", "the head is main@2")
	s.claim(s.equal("work", "main@2"), "the workspace is again what main@2 captured")

	s.tell("Another thread starts from there, in a workspace of its own. No byte is copied in the bucket.")
	objects := s.objects()
	s.runner(0, "-thread main fork side")
	s.trees["side@1"] = s.trees["main@2"]
	s.claim(s.objects() == objects, "the bucket holds %d blobs, as before", objects)
	s.runner(0, "-workspace side -thread side -- agent translate")
	s.captured("side", "side@2", "side")
	s.claim(s.head("main").ID == "main@2" && s.equal("work", "main@2"), "thread main and its workspace did not notice")
	s.claim(len(s.head("side").Conversation) == 6, "the conversation of side has its own turn after the two of main")

	s.tell("What each thread has, newest first.")
	s.runner(0, "-thread main log")
	s.runner(0, "-thread side log")

	s.tell("Every checkpoint can be restored.")
	s.restores("copy", "main@1", "main@2", "side@1", "side@2")

	s.tell("Old checkpoints are pruned, and a sweep deletes the blobs that none of the others uses.")
	s.runner(0, "-thread main prune 1")
	s.runner(0, "sweep 0s")
	s.claim(s.objects() == objects+1-2, "gone are the page with the mistake and the apology; the translation came")
	s.restores("late", "main@2", "side@1", "side@2")
	s.ask(func(store *checkpointdb.Store) error { return store.Check(s.ctx) })
	s.claim(true, "the store finds no fault in itself")

	if s.err == nil {
		fmt.Println("\nThat was all, and all of it was true.")
	}
	return s.err
}

func (s *story) path(name string) string { return filepath.Join(s.dir, name) }

func (s *story) tell(format string, args ...any) {
	if s.err == nil {
		s.step++
		fmt.Printf("\n%d. %s\n", s.step, fmt.Sprintf(format, args...))
	}
}

// claim prints what is true, and fails when it is not.
func (s *story) claim(holds bool, format string, args ...any) {
	switch text := fmt.Sprintf(format, args...); {
	case s.err != nil:
	case holds:
		fmt.Printf("   ok: %s\n", text)
	default:
		s.err = fmt.Errorf("step %d: not true: %s", s.step, text)
	}
}

// runner runs this program with some words of arguments, and fails when it does
// not exit as expected.
func (s *story) runner(exit int, words string) {
	if s.err != nil {
		return
	}
	args := []string{"-db", "store.db", "-blobs", "blobs"}
	for word := range strings.FieldsSeq(words) {
		if word == "agent" {
			args = append(args, s.self)
		}
		args = append(args, word)
	}
	cmd := exec.CommandContext(s.ctx, s.self, args...)
	cmd.Dir = s.dir
	cmd.WaitDelay = 2 * grace // the child takes up to grace for its own
	inGroup(cmd)
	fmt.Printf("   $ runner %s\n", words)
	output, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(output)) {
		fmt.Printf("   | %s\n", strings.TrimRight(line, "\r\n"))
	}
	switch {
	case s.ctx.Err() != nil:
		s.err = s.ctx.Err()
	case cmd.ProcessState == nil:
		s.err = err
	case cmd.ProcessState.ExitCode() != exit:
		s.err = fmt.Errorf("step %d: %s, not %d", s.step, cmd.ProcessState, exit)
	}
}

// captured claims that a checkpoint is the head, and keeps its tree.
func (s *story) captured(thread checkpointdb.ThreadID, id checkpointdb.CheckpointID, dir string) {
	s.trees[id] = s.tree(dir)
	s.claim(s.head(thread).ID == id, "%s is the head of %s", id, thread)
}

// restores claims that each checkpoint, restored into a new directory, is equal
// to what was captured.
func (s *story) restores(prefix string, ids ...checkpointdb.CheckpointID) {
	for _, id := range ids {
		thread, _, _ := strings.Cut(string(id), "@")
		dir := fmt.Sprintf("%s-%s", prefix, id)
		s.runner(0, fmt.Sprintf("-workspace %s -thread %s restore %s", dir, thread, id))
		s.claim(s.equal(dir, id), "%s is what %s captured", dir, id)
	}
}

// ask opens the store, which no child has open now.
func (s *story) ask(question func(*checkpointdb.Store) error) {
	if s.err != nil {
		return
	}
	store, err := checkpointdb.Open(s.path("store.db"), nil)
	if err != nil {
		s.err = err
		return
	}
	defer store.Close()
	s.err = question(store)
}

func (s *story) head(thread checkpointdb.ThreadID) (c checkpointdb.Checkpoint) {
	s.ask(func(store *checkpointdb.Store) (err error) {
		c, err = (&runner{store: store, thread: thread}).head(s.ctx)
		return err
	})
	return c
}

// uses returns how many checkpoints use the blob of a file.
func (s *story) uses(id checkpointdb.CheckpointID, path string) (n int64) {
	s.ask(func(store *checkpointdb.Store) error {
		c, err := store.Get(s.ctx, id)
		if err != nil {
			return err
		}
		for ref, err := range store.BlobReferences(s.ctx) {
			if err != nil {
				return err
			}
			for _, e := range c.Files {
				if e.Path == path && e.BlobKey == ref.Key {
					n = ref.Count
				}
			}
		}
		return nil
	})
	return n
}

// objects returns how many blobs the bucket holds.
func (s *story) objects() (n int) {
	if s.err != nil {
		return 0
	}
	bucket, err := buckets.Open(s.ctx, s.path("blobs"))
	if err != nil {
		s.err = err
		return 0
	}
	defer bucket.Close()
	all, failed := bucket.List(nil).All(s.ctx)
	for range all {
		n++
	}
	s.err = failed()
	return n
}

// tree is a directory as a checkpoint has to give it back: for each path what
// kind it is, whether it is executable, and a digest of its bytes or the target.
type tree map[string]string

func (s *story) tree(dir string) tree {
	if s.err != nil {
		return nil
	}
	t, err := readTree(s.path(dir))
	s.err = err
	return t
}

func (s *story) equal(dir string, id checkpointdb.CheckpointID) bool {
	return maps.Equal(s.tree(dir), s.trees[id])
}

// readTree shares no code with package workspace but for what is left out.
func readTree(root string) (tree, error) {
	t := tree{}
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		full := filepath.Join(root, filepath.FromSlash(path))
		switch {
		case err != nil || path == ".":
			return err
		case workspace.DefaultExclude(path, d):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir():
			t[path] = "dir"
			return nil
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(full)
			t[path] = "link " + target
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(full)
		t[path] = fmt.Sprintf("file, executable %t, %x", info.Mode()&0o100 != 0, sha256.Sum256(data))
		return err
	})
	return t, err
}
