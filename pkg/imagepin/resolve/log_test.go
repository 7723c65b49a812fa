package resolve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// formats are the log formats of containerd.
var formats = map[string]func() logrus.Formatter{
	"text": func() logrus.Formatter {
		return &logrus.TextFormatter{TimestampFormat: log.RFC3339NanoFixed, FullTimestamp: true, DisableColors: true}
	},
	"json": func() logrus.Formatter { return &logrus.JSONFormatter{TimestampFormat: log.RFC3339NanoFixed} },
}

// logfmt matches a line of the text format.
var logfmt = regexp.MustCompile(`^(?:[\w.-]+=(?:"(?:[^"\\]|\\.)*"|[^\s"=]*) ?)+$`)

// wellFormed checks that all lines of a log match its format and returns the lines.
func wellFormed(t *testing.T, format, text string) []string {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for _, line := range lines {
		var fields map[string]any
		if format == "json" {
			if err := json.Unmarshal([]byte(line), &fields); err != nil {
				t.Errorf("line is not JSON: %v\n%s", err, line)
			}
		} else if !logfmt.MatchString(line) {
			t.Errorf("line is not in the text format:\n%s", line)
		}
	}
	return lines
}

// TestErrorsAndLogsHaveNoSignatures checks that, if a registry redirects to an unreachable signed URL, neither the
// error nor the log of containerd's resolver contains the signature.
func TestErrorsAndLogsHaveNoSignatures(t *testing.T) {
	for name, f := range formats {
		t.Run(name, func(t *testing.T) {
			mirror, origin := newRegistry(t), newRegistry(t)
			redirect := func(w http.ResponseWriter, req *http.Request) bool {
				http.Redirect(w, req, "http://user:hush@127.0.0.1:1/blob?sig=hush&token=hush", http.StatusTemporaryRedirect)
				return true
			}
			mirror.answer, origin.answer = redirect, redirect
			r := newResolver(t, mirrors(mirror, origin))
			ctx, text := logged(t, f())
			_, err := r.Resolve(ctx, named(t, ref), Credential{Username: "u", Password: "hush"})
			if err == nil || strings.Contains(err.Error(), "hush") {
				t.Errorf("resolve: got %v, want an error without the signature", err)
			}
			fetcher, ferr := r.Session(named(t, ref), Credential{}).Fetcher(ctx)
			if ferr != nil {
				t.Fatal(ferr)
			}
			if _, err := fetch(ctx, fetcher, origin.image.Layer); err == nil || strings.Contains(err.Error(), "hush") {
				t.Errorf("fetch: got %v, want an error without the signature", err)
			}
			got := text()
			if strings.Contains(got, "hush") || !strings.Contains(got, "127.0.0.1:1") || !strings.Contains(got, "field") {
				t.Errorf("the log has a signature, or lacks the host or the fields:\n%s", got)
			}
			wellFormed(t, name, got)
		})
	}
}

// TestLogOfCanceledResolve checks the log of a canceled request, whose error has a URL in quotes.
func TestLogOfCanceledResolve(t *testing.T) {
	for name, f := range formats {
		t.Run(name, func(t *testing.T) {
			r, requested := hanging(t)
			ctx, text := logged(t, f())
			ctx, cancel := context.WithCancel(ctx)
			go func() {
				<-requested
				cancel()
			}()
			if _, err := r.Resolve(ctx, named(t, ref), Credential{}); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want context.Canceled", err)
			}
			got := text()
			wellFormed(t, name, got)
			if !strings.Contains(got, `/v2/team/app/manifests/1\": no caller is left`) {
				t.Errorf("the log does not have the error:\n%s", got)
			}
		})
	}
}

type stringer struct{ text string }

func (n stringer) String() string { return n.text }

// TestLoggedValues checks that values of all types are redacted before they are formatted.
func TestLoggedValues(t *testing.T) {
	u, err := url.Parse("https://user:hush@h/p?sig=hush#hush")
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range formats {
		t.Run(name, func(t *testing.T) {
			ctx, text := logged(t, f())
			log.G(withRedactedLog(ctx)).WithError(fmt.Errorf("fetch: %w", &url.Error{Op: "Get", URL: u.String(), Err: io.EOF})).
				WithFields(log.Fields{
					"url": u, "header": http.Header{"Location": {u.String()}}, "stringer": stringer{"at " + u.String()}, "status": 307,
					"took": time.Second, "done": true, "nothing": nil, "escaped": fmt.Sprintf("%q", `Get "`+u.String()+`"`),
				}).Warnf("the answer was %q", u.String())
			got := text()
			if strings.Contains(got, "hush") || strings.Count(got, "https://h/p") != 6 {
				t.Errorf("the log has a secret, or not 6 URLs:\n%s", got)
			}
			lines := wellFormed(t, name, got)
			if name != "json" || len(lines) != 1 {
				return
			}
			var fields map[string]any
			if err := json.Unmarshal([]byte(got), &fields); err != nil {
				t.Fatal(err)
			}
			for key, want := range map[string]any{
				"msg": `the answer was "https://h/p"`, "error": `fetch: Get "https://h/p": EOF`, "url": "https://h/p", "stringer": "at https://h/p",
				"status": 307.0, "took": 1e9, "done": true, "nothing": nil, "a": "field", "level": "warning", "escaped": `"Get \"https://h/p\""`,
			} {
				if fields[key] != want {
					t.Errorf("%s: got %#v, want %#v", key, fields[key], want)
				}
			}
		})
	}
}

// countHook records the entries that it is called with.
type countHook struct {
	mu      sync.Mutex
	entries []*logrus.Entry
}

func (*countHook) Levels() []logrus.Level { return []logrus.Level{logrus.InfoLevel, logrus.WarnLevel} }

func (h *countHook) Fire(e *logrus.Entry) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.entries = append(h.entries, e.Dup())
	h.entries[len(h.entries)-1].Message = e.Message
	return nil
}

// TestContextLoggerIsUnchanged checks that a redacted log keeps the level, the hooks and the caller reports of the
// context's logger, and that the logger's own entries do not change.
func TestContextLoggerIsUnchanged(t *testing.T) {
	ctx, text := logged(t, formats["json"]())
	to := log.G(ctx).Logger
	to.SetLevel(logrus.InfoLevel)
	to.SetReportCaller(true)
	h := &countHook{}
	to.AddHook(h)
	formatter := to.Formatter
	type key struct{}
	ctx = log.WithLogger(context.WithValue(ctx, key{}, "value"), log.G(ctx))
	ctx = log.WithLogger(ctx, log.G(ctx).WithContext(ctx))
	redacted := withRedactedLog(ctx)
	log.G(redacted).Debug("below the level")
	log.G(redacted).WithField("url", "https://h/?sig=hush").Info("at https://h/?sig=hush")
	log.G(redacted).Error("without a hook")
	log.G(ctx).Info("at https://h/?sig=kept")

	lines := wellFormed(t, "json", text())
	if len(lines) != 3 || strings.Contains(lines[0], "hush") || !strings.Contains(lines[2], "sig=kept") {
		t.Errorf("unexpected log:\n%s", text())
	}
	for _, line := range lines {
		if !strings.Contains(line, "log_test.go") {
			t.Errorf("line without a caller:\n%s", line)
		}
	}
	if len(h.entries) != 2 || h.entries[0].Message != "at https://h/" || h.entries[0].Context.Value(key{}) != "value" {
		t.Errorf("unexpected entries of the hook: %+v", h.entries)
	}
	if to.Formatter != formatter || len(to.Hooks[logrus.InfoLevel]) != 1 {
		t.Error("the logger of the context changed")
	}
}

// TestContextLoggerChangesConcurrently changes the context's logger while redacted logs use it. Run it with the race
// detector.
func TestContextLoggerChangesConcurrently(t *testing.T) {
	ctx, text := logged(t, formats["json"]())
	to := log.G(ctx).Logger
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			for range 50 {
				ctx := withRedactedLog(ctx)
				log.G(ctx).WithField("n", n).Info("https://u:hush@h/p?sig=hush")
			}
		})
	}
	wg.Go(func() {
		for range 50 {
			to.SetFormatter(formats["json"]())
			to.SetLevel(logrus.DebugLevel)
			to.AddHook(&countHook{})
			to.Info("its own")
		}
	})
	wg.Wait()
	if lines := wellFormed(t, "json", text()); len(lines) != 8*50+50 || strings.Contains(text(), "hush") {
		t.Errorf("got %d lines, want %d, or the log has a secret", len(lines), 8*50+50)
	}
}

// TestLogIsBounded checks that large answers of a registry are cut in the log.
func TestLogIsBounded(t *testing.T) {
	a := newRegistry(t)
	a.answer = func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("WWW-Authenticate", "Basic realm="+strings.Repeat("x", 100<<10))
		for n := range 1000 {
			w.Header().Set(fmt.Sprintf("X-Header-%d", n), strings.Repeat("y", 200))
		}
		w.Header().Set(strings.Repeat("Z", 10<<10), "z")
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	for name, f := range formats {
		t.Run(name, func(t *testing.T) {
			ctx, text := logged(t, f())
			_, err := newResolver(t, server(a)).Resolve(ctx, named(t, ref), Credential{})
			if err == nil || len(err.Error()) > imagepin.MaxErrorText {
				t.Errorf("got %.200v, want an error of at most %d bytes", err, imagepin.MaxErrorText)
			}
			got := text()
			for _, line := range wellFormed(t, name, got) {
				if len(line) > 4<<10 {
					t.Errorf("line of %d bytes is too long: %.200s", len(line), line)
				}
			}
			if !strings.Contains(got, cutField) || !strings.Contains(got, "bytes cut") || !strings.Contains(got, "401") {
				t.Errorf("the log lacks the status or the cut fields:\n%.2000s", got)
			}
		})
	}
}
