package command

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/distribution/reference"
	"github.com/urfave/cli/v3"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// completeTimeout bounds the calls of one completion.
const completeTimeout = time.Second

// flagValues return the values of flags, by the name of the flag.
var flagValues = map[string]func(*commandLine, context.Context) []candidate{
	"output":  (*commandLine).outputs,
	"handler": (*commandLine).handlers,
	"scope":   (*commandLine).scopes,
	"ref":     (*commandLine).references,
	"address": (*commandLine).files,
	"config":  (*commandLine).files,

	"update":            (*commandLine).references,
	"sandbox-image":     (*commandLine).references,
	"filename":          (*commandLine).files,
	"check":             (*commandLine).files,
	"lock":              (*commandLine).files,
	"lock-output":       (*commandLine).files,
	"containerd-config": (*commandLine).files,
	"hosts-dir":         (*commandLine).files,
	"out":               (*commandLine).files,
	"since":             (*commandLine).files,
	"expect":            (*commandLine).files,
	"man-dir":           (*commandLine).files,
}

// argumentValues return the values of arguments, by their name in the usage of a command.
var argumentValues = map[string]func(*commandLine, context.Context) []candidate{
	"REF":    (*commandLine).references,
	"DIGEST": (*commandLine).digests,
	"FILE":   (*commandLine).files,
	"LOCK":   (*commandLine).files,

	"LOCK|BUNDLE|-": (*commandLine).files,
	"COMMAND":       (*commandLine).helpTopics,
}

func (l *commandLine) valuesOf(ctx context.Context, f cli.Flag) []candidate {
	if values := flagValues[f.Names()[0]]; values != nil {
		return values(l, ctx)
	}
	return nil
}

// argumentValues returns the values of the argument of the command that is next. Only the last argument of a usage that
// ends with "..." repeats.
func (l *commandLine) argumentValues(ctx context.Context) []candidate {
	names := strings.Fields(l.command().ArgsUsage)
	if len(names) == 0 {
		return nil
	}
	next := len(l.args)
	if last := len(names) - 1; strings.Contains(names[last], "...") {
		next = min(next, last)
	}
	if next >= len(names) {
		return nil
	}
	if values := argumentValues[strings.Trim(names[next], "[].")]; values != nil {
		return values(l, ctx)
	}
	return nil
}

func (l *commandLine) files(context.Context) []candidate { return []candidate{{value: filesCandidate}} }

func (l *commandLine) outputs(ctx context.Context) []candidate {
	if l.command().Name == "lock" { // its --output is a file
		return l.files(ctx)
	}
	return plain(outputs)
}

// helpTopics returns the commands below those that are arguments already.
func (l *commandLine) helpTopics(context.Context) []candidate {
	c := l.path[0]
	for _, name := range l.args {
		if c = c.Command(name); c == nil {
			return nil
		}
	}
	if len(l.args) > 0 {
		return commandNames(c)
	}
	return append(commandNames(c), candidate{exitCodesTopic, "Exit codes of all commands"})
}

// references returns the references of images and pins on the node. A reference that the user types in its short form
// is completed in that form.
func (l *commandLine) references(ctx context.Context) []candidate {
	found := make(map[string]bool)
	l.query(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		c := api.NewControlClient(conn)
		images, err := listImages(c, ctx, &api.ImagesRequest{})
		if err != nil {
			return err
		}
		for _, k := range images.GetKeys() {
			found[k.GetRef()] = true
		}
		pins, err := listPins(c, ctx, &api.PinsRequest{})
		for _, p := range pins.GetPins() {
			found[p.GetRef()] = true
		}
		return err
	})
	all := slices.Sorted(maps.Keys(found))
	for i, ref := range all {
		if named, err := reference.ParseNormalizedNamed(ref); err == nil && !strings.HasPrefix(ref, l.current) {
			all[i] = reference.FamiliarString(named)
		}
	}
	return plain(all)
}

// digests returns the digests that the node knows of the repository of the argument before.
func (l *commandLine) digests(ctx context.Context) []candidate {
	named, err := reference.ParseDockerRef(l.args[len(l.args)-1])
	if err != nil {
		return nil
	}
	inRepository := func(ref string) bool {
		other, err := reference.ParseNormalizedNamed(ref)
		return err == nil && other.Name() == named.Name()
	}
	found := make(map[string]bool)
	l.query(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		c := api.NewControlClient(conn)
		images, err := listImages(c, ctx, &api.ImagesRequest{RefGlob: named.Name() + "**"})
		if err != nil {
			return err
		}
		for _, k := range images.GetKeys() {
			if inRepository(k.GetRef()) {
				found[k.GetRoot().GetDigest()] = true
			}
		}
		pins, err := listPins(c, ctx, &api.PinsRequest{RefGlob: named.Name() + "**"})
		for _, p := range pins.GetPins() {
			if !inRepository(p.GetRef()) {
				continue
			}
			found[p.GetRoot().GetDigest()] = true
			for _, h := range p.GetHistory() {
				found[h.GetDigest()] = true
			}
			if d := p.GetDrift(); d != nil {
				found[d.GetDigest()] = true
			}
		}
		return err
	})
	return plain(slices.Sorted(maps.Keys(found)))
}

// scopes returns the scopes of the pins on the node.
func (l *commandLine) scopes(ctx context.Context) []candidate {
	found := map[string]bool{"node": true}
	l.query(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		pins, err := listPins(api.NewControlClient(conn), ctx, &api.PinsRequest{})
		for _, p := range pins.GetPins() {
			found[p.GetScope()] = true
		}
		return err
	})
	return plain(slices.Sorted(maps.Keys(found)))
}

// handlers returns the runtime handlers of the node.
func (l *commandLine) handlers(ctx context.Context) []candidate {
	var names []string
	l.query(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		status, err := cri.NewRuntimeServiceClient(conn).Status(ctx, &cri.StatusRequest{})
		for _, h := range status.GetRuntimeHandlers() {
			if h.GetName() != "" { // the default handler also has its own name
				names = append(names, h.GetName())
			}
		}
		return err
	})
	slices.Sort(names)
	return plain(names)
}

// query calls the node. A completion has no errors: without an answer there are no values.
func (l *commandLine) query(ctx context.Context, do func(context.Context, *grpc.ClientConn) error) {
	conn, err := connect(strings.TrimPrefix(l.values["address"], "unix://"))
	if err != nil {
		return
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	_ = do(namespaces.WithNamespace(ctx, l.values["namespace"]), conn)
}

func plain(values []string) []candidate {
	return mapped(values, func(v string) candidate { return candidate{value: v} })
}
