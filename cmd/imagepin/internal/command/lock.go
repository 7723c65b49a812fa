package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v3"

	"github.com/imagepin/imagepin/cmd/imagepin/internal/imagerefs"
	"github.com/imagepin/imagepin/cmd/imagepin/internal/registry"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

const lockDescription = `Finds the images in manifests, resolves each reference once in its registry, and
writes a lock: the digest of each reference, with the digests of all platforms. The
lock is a Carvel ImagesLock, which kbld and imgpkg read. It needs no containerd and
no root.

-f is a file, a directory (*.yaml, *.yml, *.json, and lists *.txt, recursively), or
- for standard input. Files are Kubernetes manifests, compose files, or lists with
one reference in each line. Render templates, variables and kustomizations first
(helm template, kubectl kustomize, docker compose config). Images of custom
resources that are not in a pod template need --image-field.

Credentials are those of docker's configuration ($DOCKER_CONFIG/config.json or
~/.docker/config.json) with its credential helpers. Registries are configured with
hosts.toml, as for containerd.

If a reference cannot be resolved, nothing is written. All failures are printed.

Exit code of --check:
  0   the lock is up to date
  10  a tag has moved, or a reference is new or gone; a table shows which

Examples:
  imagepin lock -f manifests/ --lock-output lock.yaml    # as in imgpkg; -o is short for it
  kubectl kustomize overlays/prod | imagepin lock -f - -o lock.yaml
  imagepin lock -f kafka.yaml --image-field Kafka:spec.kafka.image -o lock.yaml
  imagepin lock -f manifests/ --check lock.yaml
  imagepin lock --update registry.example.com/shop/cart:v7 -o lock.yaml
  imagepin lock -f manifests/ --containerd-config /etc/containerd/config.toml`

func (a *app) lockCommand() *cli.Command {
	return &cli.Command{
		Name:                      "lock",
		Usage:                     "Write the digests of the images in manifests to a lock",
		Description:               lockDescription,
		DisableSliceFlagSeparator: true, // a file name can have a comma
		// -o means the format of the output for subcommands: they need an outputFlag of their own, which hides this one.
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "filename", Aliases: []string{"f"}, Local: true, Usage: "find images in `FILE`, directory, or - for standard input; can be repeated"},
			&cli.StringSliceFlag{Name: "image-field", Local: true, Usage: "also lock the images in a field of resources, `KIND:PATH`, for example Kafka:spec.kafka.image or Set:spec.items[*].image; can be repeated"},
			&cli.StringFlag{Name: "lock-output", Aliases: []string{"output", "o"}, Local: true, Validator: checkLockOutput, Usage: "write the lock to `FILE`; empty means standard output"},
			&cli.StringFlag{Name: "check", Local: true, Usage: "compare with the lock in `FILE` and write nothing"},
			&cli.StringSliceFlag{Name: "update", Local: true, Usage: "resolve only the reference `REF` of an existing lock again; can be repeated"},
			&cli.StringFlag{Name: "lock", Local: true, Usage: "existing lock `FILE` for --update; empty means that of --lock-output"},
			&cli.StringFlag{Name: "sandbox-image", Local: true, Usage: "also lock the sandbox (pause) image `REF`"},
			&cli.StringFlag{Name: "containerd-config", Local: true, Usage: "also lock the sandbox image that is configured in `FILE`, such as /etc/containerd/config.toml"},
			&cli.StringSliceFlag{Name: "hosts-dir", Local: true, Value: registry.DefaultHostsDirs, Usage: "directory `DIR` with HOST/hosts.toml; can be repeated"},
			&cli.IntFlag{Name: "concurrency", Local: true, Value: registry.DefaultConcurrency, Usage: "at most `N` requests to a registry at one time"},
			&cli.BoolFlag{Name: "no-trunc", Local: true, Usage: "do not truncate digests"},
		},
		Action:   a.lock,
		Commands: []*cli.Command{a.lockStatusCommand(), a.lockRemoveCommand()},
	}
}

func (a *app) lock(ctx context.Context, cmd *cli.Command) error {
	if cmd.Args().Present() {
		return subcommandMissing(ctx, cmd)
	}
	if err := checkLockFlags(cmd); err != nil {
		return err
	}
	client, err := registry.New(registry.Config{HostsDirs: cmd.StringSlice("hosts-dir"), Concurrency: cmd.Int("concurrency")})
	if err != nil {
		return err
	}
	ctx, cancel := withTimeout(ctx, cmd.Duration("timeout"))
	defer cancel()
	l := newLocker(client, cmd.Int("concurrency"), a.Err)
	if len(cmd.StringSlice("update")) > 0 {
		return a.lockUpdate(ctx, cmd, l)
	}
	refs, err := a.lockInput(cmd)
	if err != nil {
		return err
	}
	made, err := l.lock(ctx, refs)
	if err != nil {
		return err
	}
	if path := cmd.String("check"); path != "" {
		return a.lockCheck(a.style(cmd), path, made)
	}
	return a.writeLock(cmd.String("lock-output"), made, l.summary())
}

// checkLockOutput rejects the name of a format, which -o takes in the other commands.
func checkLockOutput(path string) error {
	if checkOutput(path) != nil {
		return nil
	}
	return fmt.Errorf("it is a format, and this is the name of a file: a lock is YAML; for a file of this name, use ./%s", path)
}

func checkLockFlags(cmd *cli.Command) error {
	files, updates := len(cmd.StringSlice("filename")), len(cmd.StringSlice("update"))
	sandbox := cmd.String("sandbox-image") != "" || cmd.String("containerd-config") != ""
	switch {
	case files == 0 && len(cmd.StringSlice("image-field")) > 0:
		return errors.New("--image-field is for manifests: name them with --filename")
	case updates > 0 && (files > 0 || sandbox || cmd.String("check") != ""):
		return errors.New("--update works on an existing lock, it excludes --filename, --check, --sandbox-image and --containerd-config")
	case updates > 0 && cmd.String("lock") == "" && cmd.String("lock-output") == "":
		return errors.New("--update needs the existing lock: name it with --lock-output, or --lock")
	case updates == 0 && cmd.String("lock") != "":
		return errors.New("--lock is for --update; to compare with a lock, use --check")
	case updates == 0 && files == 0 && !sandbox:
		return fmt.Errorf("which images? name manifests with --filename, see %s --help", cmd.FullName())
	case cmd.String("check") != "" && cmd.String("lock-output") != "":
		return errors.New("--check writes nothing, it excludes --lock-output")
	case cmd.Int("concurrency") < 1:
		return errors.New("--concurrency must be at least 1")
	}
	return nil
}

// lockInput returns the references to lock. It fails if there are none.
func (a *app) lockInput(cmd *cli.Command) ([]imagerefs.Ref, error) {
	names := cmd.StringSlice("filename")
	options := imagerefs.Options{Skipped: func(s imagerefs.Skipped) {
		fmt.Fprintf(a.Err, "imagepin: note: %s: %q is not locked. If it is an image, add --image-field '%s'\n", s.Place, s.Text, s.Field)
	}}
	for _, text := range cmd.StringSlice("image-field") {
		field, err := imagerefs.ParseField(text)
		if err != nil {
			return nil, err
		}
		options.Fields = append(options.Fields, field)
	}
	refs, err := options.Read(a.In, names...)
	if err != nil {
		return nil, err
	}
	if len(refs) == 0 && len(names) > 0 {
		return nil, imagerefs.InvalidInput(fmt.Sprintf("no images in %q", names), "Name manifests, compose files, or lists with one reference in each line.")
	}
	if text := cmd.String("sandbox-image"); text != "" {
		ref, err := imagerefs.Parse(text, imagerefs.Place{File: "--sandbox-image"})
		if err != nil {
			return nil, err
		}
		refs = append(refs, ref)
	}
	if path := cmd.String("containerd-config"); path != "" {
		ref, err := sandboxImage(path)
		if err != nil {
			return nil, err
		}
		refs = append(refs, ref)
	}
	return refs, nil
}

// lockCheck compares a lock with a file and prints the changes.
func (a *app) lockCheck(s style, path string, now *lock.Lock) error {
	old, err := readLock(path, nil)
	if err != nil {
		return err
	}
	changes := lock.Compare(old, now)
	if len(changes) == 0 {
		_, err := fmt.Fprintf(a.Out, "%s is up to date: %s\n", path, count(int64(len(old.Images)), "reference"))
		return err
	}
	if err := a.table([]string{"REFERENCE", "LOCKED", "NOW"}, mapped(changes, func(c lock.Change) []string {
		return []string{s.ref(c.Name), s.digest(c.Old.String()), s.digest(c.New.String())}
	})); err != nil {
		return err
	}
	return exitError(exitChanged)
}

// readLock reads a lock. "-" is stdin, unless that is nil.
func readLock(path string, stdin io.Reader) (*lock.Lock, error) {
	data, err := readLockText(path, stdin)
	if err != nil {
		return nil, err
	}
	l, err := lock.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

// readLockText reads the text of a lock, of one that is too large only the beginning. "-" is stdin, unless that is nil.
func readLockText(path string, stdin io.Reader) ([]byte, error) {
	if path != "-" || stdin == nil {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		stdin = f
	}
	return io.ReadAll(io.LimitReader(stdin, lock.MaxSize+1))
}
