package command

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// controls clears a terminal, twice, and returns to the beginning of the line.
const controls = "\x1b[2J\u009b2J\r"

// own are the fields whose texts are imagepin's own, or that it has parsed.
var own = []protoreflect.Name{"ref", "digest", "scope", "by", "version", "containerd_version", "waits_for", "done"}

// addControls adds controls to the texts of a message that others can write.
func addControls(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				addControls(v.List().Get(i).Message())
			}
		case f.Message() != nil:
			addControls(v.Message())
		case f.Kind() == protoreflect.StringKind && !f.IsList() && !slices.Contains(own, f.Name()):
			m.Set(f, protoreflect.ValueOfString(v.String()+controls))
		}
		return true
	})
}

// TestPrintable checks that no text of a registry, an image or another tool changes the terminal.
func TestPrintable(t *testing.T) {
	c := recorded()
	c.apply = nil
	c.check.Findings = append(c.check.Findings, &api.Finding{Subject: "image", Problem: "other", Error: "failed", Removed: []string{controls}})
	for _, m := range []proto.Message{c.images, c.inspect, c.resolve, c.diff, c.check, c.usage, c.ps, c.pins} {
		addControls(m.ProtoReflect())
	}
	for _, m := range c.pull {
		addControls(m.ProtoReflect())
	}
	c.pull[len(c.pull)-1].Result.Fallback, c.pull[len(c.pull)-1].Result.OtherPlatform = "failed"+controls, "linux/"+controls
	for _, m := range c.events {
		addControls(m.ProtoReflect())
	}
	for _, args := range []string{
		"images", "images -o wide", "inspect app", "resolve app", "diff app", "check", "du", "ps", "ps -o wide", "pin ls", "pull app", "events",
	} {
		got := run(t, c, strings.Fields(args)...)
		if strings.ContainsAny(got.out+got.err, controls[:1]+"\u009b\r") {
			t.Errorf("imagepin %s printed %q, %q", args, got.out, got.err)
		}
	}
}

// TestPrintableError checks that the error of a registry does not change the terminal, and keeps its lines.
func TestPrintableError(t *testing.T) {
	c := recorded()
	c.err = status.Error(codes.PermissionDenied, "denied: "+controls+"\nlog in")
	failed(t, run(t, c, "inspect", "app"), "denied: \uFFFD[2J\uFFFD2J\uFFFD\nlog in")
}

// TestPrintableStatus checks the same of a state of the node, and of its changes.
func TestPrintableStatus(t *testing.T) {
	st := unhealthy()
	addControls(st.ProtoReflect())
	got := statusText(st, testNow).String() + strings.Join((&statusWatch{now: func() time.Time { return testNow }}).update(st), "\n")
	if strings.ContainsAny(got, controls[:1]+"\u009b\r") {
		t.Errorf("got %q", got)
	}
}
