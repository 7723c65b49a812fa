package command

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/urfave/cli/v3"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin/node"
)

var update = flag.Bool("update", false, "update testdata")

// golden compares got with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

func TestOutput(t *testing.T) {
	ok := func(change func(*control)) *control {
		c := recorded()
		change(c)
		return c
	}
	for _, test := range []struct {
		name    string
		control *control
		code    int
		args    string
	}{
		{"images", recorded(), 0, "images"},
		{"images-no-trunc", recorded(), 0, "images --no-trunc"},
		{"images-all", tagged(), 0, "images --all"},
		{"images-tagged", tagged(), 0, "images --digests"},
		{"images-moved-pin", ok(func(c *control) {
			k := c.images.Keys[0]
			k.Pin, k.OtherPin, k.OtherPinDigest = "", k.Pin, digestNew
		}), 0, "images"},
		{"images-no-headers", recorded(), 0, "images --no-headers"},
		{"du-no-headers", recorded(), 1, "du --no-headers"},
		{"images-none-no-headers", ok(func(c *control) { c.images = &api.ImagesResponse{} }), 0, "images --no-headers"},
		{"pull-quiet", recorded(), 0, "pull -q " + appRef},
		{"images-none", ok(func(c *control) { c.images = &api.ImagesResponse{} }), 0, "images"},
		{"inspect", recorded(), 0, "inspect " + appRef},
		{"inspect-none", ok(func(c *control) {
			c.inspect = &api.InspectResponse{Ref: appRef, Rule: &api.Rule{PullBehavior: "default", VersionConsistency: "off"}}
		}), 0, "inspect " + appRef},
		{"resolve", recorded(), 0, "resolve " + appRef},
		{"resolve-cluster", ok(func(c *control) {
			c.resolve.Pin = clusterPin()
			c.resolve.Why = "pinned in the cluster by node n2, in scope " + clusterPin().Scope + " since 2026-11-19T10:00:00Z"
		}), 0, "resolve " + appRef + " --scope " + clusterPin().Scope},
		{"resolve-pod", ok(func(c *control) {
			c.resolve.Pod, c.resolve.Ignored = "shop/web-7d4b9c-x8x2b", []string{"io.imagepin.pull-behavior"}
		}), 0, "resolve " + appRef + " --pod shop/web-7d4b9c-x8x2b"},
		{"resolve-offline", ok(func(c *control) {
			c.resolve.Registry, c.resolve.Host, c.resolve.Pin, c.resolve.Missing = nil, "", nil, nil
			c.resolve.RegistryError, c.resolve.Ready = "CannotPullImageManifest: no route to host\nis it up?", true
		}), 0, "resolve " + appRef},
		{"pull", recorded(), 0, "pull " + appRef},
		{"pull-fallback", ok(func(c *control) {
			last := c.pull[len(c.pull)-1]
			last.Result.Done, last.Result.Fallback = "up_to_date", registryDown
		}), 0, "pull " + appRef},
		{"pin-ls", recorded(), 0, "pin ls"},
		{"pin-ls-check", recorded(), exitChanged, "pin ls --check"},
		{"pin-set", recorded(), 0, "pin set " + appRef + " " + digestNew + " --scope " + workload},
		{"pin-set-retained", ok(func(c *control) { c.setPin.Pin.Retain = true }), 0, "pin set " + appRef + " " + digestNew + " --scope " + workload},
		{"pin-rm", recorded(), 0, "pin rm " + appRef},
		{"pin-rm-several", recorded(), 0, "pin rm " + appRef + " " + appRef},
		{"pin-rm-others", ok(func(c *control) { c.removePin.Others, c.removePin.OtherScopes = 1, []string{workload} }), 0, "pin rm " + appRef},
		{"pin-undo-others", ok(func(c *control) { c.setPin.Others, c.setPin.OtherScopes = 9, []string{"node", "workload/shop/app=1"} }), 0, "pin undo " + appRef + " --scope " + workload},
		{"refresh", recorded(), 10, "refresh " + appRef},
		{"refresh-unchanged", ok(func(c *control) {
			c.refresh.Changed, c.refresh.Refreshed = false, c.refresh.Refreshed[2:]
		}), 0, "refresh " + appRef},
		{"refresh-failed", ok(func(c *control) { c.refresh.Refreshed[1].Error = "NoMatchingPlatform: none\ntry another" }), 1, "refresh " + appRef},
		{"diff", recorded(), 0, "diff " + appRef},
		{"du", recorded(), 1, "du"},
		{"du-healthy", ok(func(c *control) {
			c.usage.Images, c.usage.Snapshotters = c.usage.Images[2:], c.usage.Snapshotters[1:]
		}), 0, "du --no-trunc"},
		{"check", recorded(), 1, "check"},
		{"check-repaired", ok(func(c *control) {
			c.check.Findings = c.check.Findings[:1]
			c.check.Findings[0].Repaired, c.check.Findings[0].Repair = true, "unpacked it again"
		}), 0, "check --repair"},
		{"check-not-adopted", ok(func(c *control) { c.check.Findings = c.check.Findings[2:] }), 0, "check"},
		{"check-repairs", ok(func(c *control) { c.check.Findings = repairs() }), 1, "check --repair"},
		{"check-removed", ok(func(c *control) {
			c.check.Findings = c.check.Findings[:1]
			c.check.Findings[0].Repaired, c.check.Findings[0].Repair = true, "unpacked again from local content"
			c.check.Findings[0].Removed = []string{"container app of pod shop/cart-0 (4f1c)", "the sandbox of pod shop/cart-0 (9ab2)"}
		}), 0, "check --repair --remove-exited"},
		{"check-deep", recorded(), 1, "check --deep"},
		{"uninstall-dry", recorded(), 1, "uninstall"},
		{"uninstall", recorded(), 0, "uninstall --yes"},
		{"apply", recorded(), 0, "apply"},
		{"apply-dry", ok(func(c *control) { c.apply = c.apply[len(c.apply)-1:] }), 0, "apply --dry-run"},
		{"apply-handlers", ok(func(c *control) { c.apply[len(c.apply)-1].Result.Handlers = []string{"kata", "runc"} }), 0, "apply --handler kata --handler runc"},
		{"apply-unchanged", ok(func(c *control) {
			c.apply = []*api.ApplyResponse{{Result: &api.ApplyResult{Lock: digestNew, Previous: digestOld, Locked: 3}}}
		}), 0, "apply --no-trunc"},
		{"rollback", recorded(), 0, "rollback"},
		{"lock-status", recorded(), 10, "lock status"},
		{"lock-status-no-trunc", recorded(), 10, "lock status --no-trunc"},
		{"lock-status-none", ok(func(c *control) { c.lock = &api.LockStatusResponse{Counts: &api.LockCounts{}} }), 0, "lock status"},
		{"lock-status-clean", ok(func(c *control) { c.lock = cleanNode() }), 0, "lock status"},
		{"lock-status-applying", ok(func(c *control) {
			c.lock = &api.LockStatusResponse{Applying: c.apply[1].GetProgress()}
		}), 0, "lock status"},
		{"lock-status-unreadable", ok(func(c *control) { c.lock = &api.LockStatusResponse{Unreadable: "version 2 is newer than 1"} }), 10, "lock status"},
		{"lock-rm", recorded(), 0, "lock rm"},
		{"ps", recorded(), 10, "ps"},
		{"ps-no-trunc", recorded(), 10, "ps --no-trunc"},
		{"ps-same", ok(func(c *control) { c.ps.Containers = c.ps.Containers[1:] }), 0, "ps"},
		{"ps-none", ok(func(c *control) { c.ps.Containers = nil }), 0, "ps --differs"},
		{"lock-rm-previous", ok(func(c *control) { c.unlock.Result = &api.ApplyResult{Lock: digestOld} }), 0, "lock rm --previous"},
		{"limit-rate", ok(func(*control) {}), 0, "limit-rate"},
		{"check-clean", ok(func(c *control) { c.check.Findings = nil }), 0, "check"},
	} {
		for _, format := range []string{outputTable, outputWide, outputJSON} {
			if format != outputTable && (strings.HasSuffix(test.name, "-headers") || strings.HasSuffix(test.name, "-quiet")) {
				continue
			}
			if format == outputWide && !strings.HasPrefix(test.name, "images") && !strings.HasPrefix(test.name, "du") && !strings.HasPrefix(test.name, "ps") {
				continue
			}
			t.Run(test.name+"/"+format, func(t *testing.T) {
				got := run(t, test.control, append(strings.Fields(test.args), "--output", format)...)
				if got.code != test.code {
					t.Errorf("exit code %d, want %d: %s", got.code, test.code, got.err)
				}
				golden(t, test.name+"."+format, got.out)
			})
		}
	}
}

func TestRequests(t *testing.T) {
	for _, test := range []struct {
		args string
		want proto.Message
	}{
		{"images --ref a/* --handler kata", &api.ImagesRequest{RefGlob: "a/*", Handler: "kata"}},
		{"inspect app", &api.InspectRequest{Ref: "app"}},
		{"pin ls", &api.PinsRequest{}},
		{"pin ls --scope all", &api.PinsRequest{}},
		{"pin undo app", &api.UndoPinRequest{Ref: "app", Scope: "node"}},
		{"refresh app --scope all", &api.RefreshRequest{Ref: "app"}},
		{"resolve app --handler kata --scope node", &api.ResolveRequest{Ref: "app", Handler: "kata", Scope: "node"}},
		{"resolve app --pod shop/web", &api.ResolveRequest{Ref: "app", Pod: "shop/web"}},
		{"resolve app -u bob:secret", &api.ResolveRequest{Ref: "app", Credential: &api.Credential{Username: "bob", Password: "secret"}}},
		{"pull app --handler kata --user bob:se:cret", &api.PullRequest{Ref: "app", Handler: "kata", Credential: &api.Credential{Username: "bob", Password: "se:cret"}}},
		{"pin ls --ref a/* --scope node", &api.PinsRequest{RefGlob: "a/*", Scope: "node"}},
		{"pin ls --check --ref a/*", &api.PinsRequest{RefGlob: "a/*"}},
		{"pin set --scope node --retain app sha256:1", &api.SetPinRequest{Scope: "node", Ref: "app", Digest: "sha256:1", Retain: proto.Bool(true)}},
		{"pin set app sha256:1 --retain=false --force", &api.SetPinRequest{Scope: "node", Ref: "app", Digest: "sha256:1", Retain: proto.Bool(false), Force: true}},
		{"pin set app sha256:1", &api.SetPinRequest{Scope: "node", Ref: "app", Digest: "sha256:1"}},
		{"pin rm app --scope node", &api.RemovePinRequest{Scope: "node", Ref: "app"}},
		{"refresh app --scope node -u bob:", &api.RefreshRequest{Ref: "app", Scope: "node", Credential: &api.Credential{Username: "bob"}}},
		{"diff app", &api.DiffRequest{Ref: "app"}},
		{"diff app sha256:1 --scope node --all-platforms -u bob:secret", &api.DiffRequest{
			Ref: "app", Digest: "sha256:1", Scope: "node", AllPlatforms: true, Credential: &api.Credential{Username: "bob", Password: "secret"},
		}},
		{"du --ref a/*", &api.DiskUsageRequest{RefGlob: "a/*"}},
		{"check --repair", &api.CheckRequest{Repair: true}},
		{"check --repair --remove-exited", &api.CheckRequest{Repair: true, RemoveExited: true}},
		{"check --repair --deep --remove-exited", &api.DeepCheckRequest{Repair: true, RemoveExited: true, BytesPerSecond: 100 << 20}},
		{"check --deep", &api.DeepCheckRequest{BytesPerSecond: 100 << 20}},
		{"check --deep --repair --rate 20MiB", &api.DeepCheckRequest{Repair: true, BytesPerSecond: 20 << 20}},
		{"check --deep --rate 0", &api.DeepCheckRequest{BytesPerSecond: -1}},
		{"apply", &api.ApplyRequest{Dropped: true}},
		{"apply --handler kata --handler runc --limit-rate 10MiB --dry-run", &api.ApplyRequest{
			Dropped: true, Handlers: []string{"kata", "runc"}, BytesPerSecond: 10 << 20, DryRun: true,
		}},
		{"apply --all-handlers", &api.ApplyRequest{Dropped: true, AllHandlers: true}},
		{"apply -u bob:secret", &api.ApplyRequest{Dropped: true, Credential: &api.Credential{Username: "bob", Password: "secret"}}},
		{"apply -d", &api.ApplyRequest{Dropped: true, Detach: true}},
		{"rollback --limit-rate 1k -u bob:secret", &api.RollbackRequest{BytesPerSecond: 1 << 10, Credential: &api.Credential{Username: "bob", Password: "secret"}}},
		{"limit-rate", &api.LimitRateRequest{}},
		{"limit-rate 10MiB", &api.LimitRateRequest{BytesPerSecond: proto.Int64(10 << 20)}},
		{"limit-rate 0", &api.LimitRateRequest{BytesPerSecond: proto.Int64(0)}},
		{"limit-rate --reset", &api.LimitRateRequest{Reset_: true}},
		{"lock rm --previous", &api.RemoveLockRequest{Previous: true}},
		{"ps --ref a/* --pod shop/* --handler kata --differs -q", &api.ContainersRequest{RefGlob: "a/*", PodGlob: "shop/*", Handler: "kata", Differs: true}},
		{"uninstall", &api.UninstallRequest{DryRun: true}},
		{"uninstall --yes", &api.UninstallRequest{}},
	} {
		t.Run(test.args, func(t *testing.T) {
			c := recorded()
			c.deep, c.apply = nil, c.apply[len(c.apply)-1:]
			if got := run(t, c, strings.Fields(test.args)...); got.err != "" {
				t.Error(got.err)
			}
			if !proto.Equal(c.request, test.want) {
				t.Errorf("got request %v, want %v", c.request, test.want)
			}
			if len(c.namespace) != 1 || c.namespace[0] != "k8s.io" {
				t.Errorf("got namespace %q, want k8s.io", c.namespace)
			}
		})
	}
}

func TestEnvironment(t *testing.T) {
	c := recorded()
	_, address := serve(t, func(s *grpc.Server) { api.RegisterControlServer(s, c) })
	t.Setenv("CONTAINERD_ADDRESS", "unix://"+address)
	var out, errOut bytes.Buffer
	if code := Run(t.Context(), Stdio{In: &out, Out: &out, Err: &errOut}, node.Parts{}, []string{"imagepin", "images", "-n", "other"}); code != 0 {
		t.Fatal(errOut.String())
	}
	if c.namespace[0] != "other" {
		t.Errorf("got namespace %q, want other", c.namespace)
	}
}

// everyCall has one call of each command that uses the control service.
var everyCall = []string{
	"images", "inspect app", "resolve app", "pull app", "pin ls", "pin ls --check", "pin set app sha256:1", "pin rm app", "refresh app", "diff app", "du", "events", "check", "check --deep",
	"uninstall", "apply", "rollback", "lock status", "lock rm", "ps",
}

// failed checks that a command failed and printed only this message.
func failed(t *testing.T, got result, want string) {
	t.Helper()
	if got.code != 1 || got.out != "" || got.err != "imagepin: "+want+"\n" {
		t.Errorf("exit code %d, printed %q and %q, want 1 and %q", got.code, got.out, got.err, want)
	}
}

func TestServerErrors(t *testing.T) {
	text := "CannotPullImageManifest: app: the registry is down\nis it?"
	for _, code := range []codes.Code{codes.Unavailable, codes.NotFound, codes.Unknown} {
		for _, args := range everyCall {
			t.Run(code.String()+"/"+args, func(t *testing.T) {
				c := &control{err: status.Error(code, text)}
				failed(t, run(t, c, strings.Fields(args)...), text)
			})
		}
	}
}

func TestContainerdStopped(t *testing.T) {
	l, refused := listen(t)
	l.(interface{ SetUnlinkOnClose(bool) }).SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for address, why := range map[string]string{
		refused: "connection refused",
		filepath.Join(t.TempDir(), "containerd.sock"): "no such file or directory",
	} {
		for _, args := range everyCall {
			t.Run(why+"/"+args, func(t *testing.T) {
				got := runAt(t, address, nil, strings.Fields(args)...)
				failed(t, got, "cannot connect to containerd: dial unix "+address+": connect: "+why+"\nStart containerd: systemctl start containerd")
			})
		}
	}
}

func TestContainerdStopsDuringCall(t *testing.T) {
	c := &control{}
	s, address := serve(t, func(s *grpc.Server) { api.RegisterControlServer(s, c) })
	stopped := make(chan struct{})
	c.during = func(ctx context.Context) {
		go func() { defer close(stopped); s.Stop() }()
		<-ctx.Done()
	}
	got := runAt(t, address, nil, "refresh", "app")
	<-stopped
	failed(t, got, "containerd exited, or was restarted, before the command was complete")
}

func TestContainerdWithoutImagepin(t *testing.T) {
	_, address := serve(t, func(*grpc.Server) {})
	for _, args := range everyCall {
		t.Run(args, func(t *testing.T) {
			got := runAt(t, address, nil, strings.Fields(args)...)
			failed(t, got, "containerd at "+address+" does not serve imagepin: the plugin is missing, is disabled, or failed to load (see ctr plugins ls)")
		})
	}
}

func TestContainerdWithOlderImagepin(t *testing.T) {
	older := grpc.ServiceDesc{ServiceName: api.Control_ServiceDesc.ServiceName, HandlerType: (*any)(nil)}
	_, address := serve(t, func(s *grpc.Server) { s.RegisterService(&older, struct{}{}) })
	failed(t, runAt(t, address, nil, "images"),
		"imagepin at "+address+" is older than this command: unknown method StreamImages for service imagepin.v1.Control")
}

func TestTimeout(t *testing.T) {
	release := make(chan struct{})
	c := &control{during: func(context.Context) { <-release }}
	_, address := serve(t, func(s *grpc.Server) { api.RegisterControlServer(s, c) })
	defer close(release)
	failed(t, runAt(t, address, nil, "check", "--timeout", "20ms"), "timed out after 20ms (--timeout)")
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	c := &control{during: func(ctx context.Context) {
		cancel(signalError{os.Interrupt})
		<-ctx.Done()
	}}
	_, address := serve(t, func(s *grpc.Server) { api.RegisterControlServer(s, c) })
	for _, args := range [][]string{{"check"}, {"pull", "app", "-u", "bob", "--password-stdin"}} {
		var out, errOut bytes.Buffer
		in, _ := io.Pipe() // never has data
		code := Run(ctx, Stdio{In: in, Out: &out, Err: &errOut}, node.Parts{}, append([]string{"imagepin", "-a", address}, args...))
		if code != 130 || !strings.HasSuffix(errOut.String(), "interrupted\n") || strings.Count(errOut.String(), "\n") != 1 {
			t.Errorf("%s: exit code %d, printed %q", args, code, errOut.String())
		}
	}
}

// TestOtherWords checks that each command that is suggested for a word of other tools exists, and the word does not.
func TestOtherWords(t *testing.T) {
	find := func(path string) *cli.Command {
		c := (&app{}).root()
		for _, name := range strings.Fields(path) {
			if !strings.HasPrefix(name, "-") && c != nil {
				c = c.Command(name)
			}
		}
		return c
	}
	for group, words := range otherWords {
		for word, command := range words {
			if c := find(command); c == nil || c.Hidden {
				t.Errorf("%s: there is no command %q", word, command)
			}
			if find(group+" "+word) != nil {
				t.Errorf("%s %s is a command", group, word)
			}
		}
	}
}

func TestUsageErrors(t *testing.T) {
	for args, want := range map[string]string{
		"":                                      "",
		"zzz":                                   `unknown command "zzz", see imagepin --help`,
		"imagse":                                `unknown command "imagse" (did you mean "images"?), see imagepin --help`,
		"rm":                                    "imagepin rm takes REF..., got 0 arguments, see imagepin rm --help",
		"pin rm":                                "imagepin pin rm takes REF..., got 0 arguments, see imagepin pin rm --help",
		"apply --all-handlers --handler kata":   "--handler and --all-handlers exclude each other",
		"pull app -q -o json":                   "--quiet excludes --output other than table",
		"unpin app":                             `unknown command "unpin" (did you mean "imagepin pin rm"?), see imagepin --help`,
		"pin delete app":                        `unknown command "delete" (did you mean "imagepin pin rm"?), see imagepin pin --help`,
		"help config validate":                  `unknown command "validate" (did you mean "imagepin config check"?), see imagepin config --help`,
		"unlist":                                `unknown command "unlist", see imagepin --help`,
		"pin lst":                               `unknown command "lst" (did you mean "list"?), see imagepin pin --help`,
		"help pin sett":                         `unknown command "sett" (did you mean "set"?), see imagepin pin --help`,
		strings.Repeat("z", 100):                `unknown command "` + strings.Repeat("z", 64) + `…", see imagepin --help`,
		"images x":                              "imagepin images takes no arguments, got 1 argument, see imagepin images --help",
		"pull":                                  "imagepin pull takes REF, got 0 arguments, see imagepin pull --help",
		"pull app --user bob secret":            "imagepin pull takes REF, got 2 arguments, see imagepin pull --help",
		"pin set app":                           "imagepin pin set takes REF DIGEST, got 1 argument, see imagepin pin set --help",
		"diff":                                  "imagepin diff takes REF [DIGEST], got 0 arguments, see imagepin diff --help",
		"diff app a b":                          "imagepin diff takes REF [DIGEST], got 3 arguments, see imagepin diff --help",
		"images --timeout 5":                    `invalid value "5" for flag --timeout: time: missing unit in duration "5", see imagepin images --help`,
		"pin rm app --scope=":                   `invalid value "" for flag --scope: a scope is not empty, see imagepin pin rm --help`,
		"images --zzz":                          `unknown flag "--zzz", see imagepin images --help`,
		"images --handlr runc":                  `unknown flag "--handlr" (did you mean "--handler"?), see imagepin images --help`,
		"images --outptu json":                  `unknown flag "--outptu" (did you mean "--output"?), see imagepin images --help`,
		"images -o jsonpath=":                   `invalid value "jsonpath=" for flag -o: the template is missing, see imagepin images --help`,
		"images -o go-template=":                `invalid value "go-template=" for flag -o: the template is missing, see imagepin images --help`,
		"images -o xml":                         `invalid value "xml" for flag -o: must be table, wide, json, yaml, jsonpath=TEMPLATE or go-template=TEMPLATE, see imagepin images --help`,
		"pull app --user bob":                   "read the password: standard input is not a terminal, use --password-stdin",
		"pull app --password-stdin":             "a password requires --user NAME",
		"pull app --user :secret":               "a password requires --user NAME",
		"pull app -u b:secret --password-stdin": "--user with a password and --password-stdin exclude each other",
		"pull app -u bob --password-stdin":      "read the password: standard input is empty",
	} {
		t.Run(args, func(t *testing.T) {
			got := runAt(t, "/absent", bytes.NewReader(nil), strings.Fields(args)...)
			if want == "" {
				if got.code != 0 || !strings.Contains(got.out, "COMMANDS:") || strings.Count(got.out, "--address SOCKET") != 1 {
					t.Errorf("exit code %d, printed %q", got.code, got.out)
				}
				return
			}
			failed(t, got, want)
		})
	}
}

// TestLongUsageErrors checks that an error repeats only a part of a long value.
func TestLongUsageErrors(t *testing.T) {
	for _, args := range []string{"-o=", "-o=jsonpath={", "--timeout="} {
		got := runAt(t, "/absent", nil, "images", args+strings.Repeat("x", 100_000))
		if got.code != 1 || len(got.err) > 700 || !strings.HasSuffix(got.err, ", see imagepin images --help\n") {
			t.Errorf("%s: exit code %d, printed %d bytes: %.1000q", args, got.code, len(got.err), got.err)
		}
	}
}

func TestPasswordFromStandardInput(t *testing.T) {
	for name, in := range map[string]string{"line": "secret\n", "windows line": "secret\r\n", "no line end": "secret"} {
		t.Run(name, func(t *testing.T) {
			c := recorded()
			_, address := serve(t, func(s *grpc.Server) { api.RegisterControlServer(s, c) })
			got := runAt(t, address, strings.NewReader(in), "pull", "app", "--user", "bob", "--password-stdin")
			if got.code != 0 {
				t.Fatal(got.err)
			}
			if p := c.request.(*api.PullRequest).GetCredential().GetPassword(); p != "secret" {
				t.Errorf("got password %q, want secret", p)
			}
		})
	}
}

func TestPasswordIsNotEchoed(t *testing.T) {
	for _, args := range []string{"resolve app", "pull app", "pin set app sha256:1", "refresh app", "apply", "rollback"} {
		c := &control{err: status.Error(codes.Unauthenticated, "denied: bob hunter2")}
		failed(t, run(t, c, append(strings.Fields(args), "--user", "bob:hunter2")...), "denied: bob [password]")
	}
}

// commands returns a command and its subcommands by full name.
func commands(c *cli.Command, path string) map[string]*cli.Command {
	all := map[string]*cli.Command{path: c}
	for _, sub := range c.Commands {
		for name, c := range commands(sub, path+" "+sub.Name) {
			all[name] = c
		}
	}
	return all
}

func TestHelpHasExamples(t *testing.T) {
	root := (&app{}).root()
	for name, c := range commands(root, "imagepin") {
		if c.Hidden {
			continue
		}
		args := append(strings.Fields(name)[1:], "--help")
		got := runAt(t, "/absent", nil, args...)
		if got.code != 0 || !strings.Contains(got.out, c.Usage) {
			t.Errorf("%s --help: exit code %d, printed %s%s", name, got.code, got.out, got.err)
		}
		_, examples, _ := strings.Cut(got.out, "\nDESCRIPTION:")
		if c != root {
			_, examples, _ = strings.Cut(examples, "\n   Examples:\n")
		}
		if !strings.Contains(examples, name) {
			t.Errorf("the help of %s has no example", name)
		}
	}
}

// TestImports checks that the command imports only these packages of imagepin: its own, version, the API, config,
// serve and its parts, what it needs to read registries and locks, and helpers.
func TestImports(t *testing.T) {
	const module = "github.com/imagepin/imagepin/"
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{if ne .Name "registrytest"}}{{join .Imports "\n"}}{{end}}`, module+"cmd/imagepin/...").Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Fatalf("go list: %s", exit.Stderr)
	}
	if err != nil {
		t.Fatal(err)
	}
	allowed := []string{"version", "api/imagepin/v1", "pkg/imagepin/config", "pkg/imagepin/serve", "cmd/imagepin/internal/command", "cmd/imagepin/internal/install", "cmd/imagepin/internal/manpages", "cmd/imagepin/internal/imagerefs", "cmd/imagepin/internal/registry", "internal/failpoint", "internal/similar", "internal/yamldoc", "pkg/imagepin/lock", "pkg/imagepin/bundle", "pkg/imagepin/resolve", "pkg/imagepin/node", "plugins/imagepin/cluster", "plugins/imagepin/fleet"}
	for imp := range strings.Lines(string(out)) {
		ours, ok := strings.CutPrefix(strings.TrimSpace(imp), module)
		if ok && !strings.Contains(strings.Join(allowed, "\n"), ours) {
			t.Errorf("the command imports %s", ours)
		}
	}
}
