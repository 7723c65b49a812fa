package monitoring

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// scrapeInterval is how often the Prometheus of a test scrapes and evaluates its rules.
const scrapeInterval = time.Second

// prometheus is a running Prometheus.
type prometheus struct {
	t       *testing.T
	address string
	client  *http.Client
}

// startPrometheus starts a Prometheus with the configuration in contrib/prometheus, which scrapes a target instead of that
// in the configuration.
func startPrometheus(t *testing.T, target string) *prometheus {
	t.Helper()
	binary := filepath.Join(node.BinDir(), "prometheus", "prometheus")
	if _, err := os.Stat(binary); err != nil {
		t.Fatalf("%v; run hack/prometheus.sh", err)
	}
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	config := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(config, adapted(t, target), 0o644); err != nil {
		t.Fatal(err)
	}
	p := &prometheus{t: t, address: testkit.Address(t), client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	cmd := exec.Command(binary, "--config.file", config, "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", p.address)
	cmd.Stdout, cmd.Stderr = log, log
	exited := runUntilCleanup(t, cmd)
	t.Cleanup(func() {
		if t.Failed() {
			b, _ := os.ReadFile(log.Name())
			t.Logf("the log of Prometheus:\n%s", b)
		}
	})
	testkit.EventuallyIn(t, 30*time.Second, "Prometheus is ready", func(ctx context.Context) (bool, error) {
		select {
		case err := <-exited:
			return false, fmt.Errorf("it has exited: %v", err)
		default:
		}
		_, err := p.get(ctx, "/-/ready", nil)
		return err == nil, nil
	})
	return p
}

// adapted returns contrib/prometheus/scrape.yaml with another target and other intervals.
func adapted(t *testing.T, target string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(contrib, "prometheus", "scrape.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := yaml.Unmarshal(b, &config); err != nil {
		t.Fatal(err)
	}
	config["global"] = map[string]any{
		"scrape_interval": scrapeInterval.String(), "scrape_timeout": scrapeInterval.String(), "evaluation_interval": scrapeInterval.String(),
	}
	for i, file := range config["rule_files"].([]any) {
		if config["rule_files"].([]any)[i], err = filepath.Abs(filepath.Join(contrib, "prometheus", file.(string))); err != nil {
			t.Fatal(err)
		}
	}
	config["scrape_configs"].([]any)[0].(map[string]any)["static_configs"] = []any{map[string]any{"targets": []string{target}}}
	if b, err = yaml.Marshal(config); err != nil {
		t.Fatal(err)
	}
	return b
}

// runUntilCleanup starts a command and kills it at the end of the test, or if the test is killed. It returns a channel
// with the result of the command.
func runUntilCleanup(t *testing.T, cmd *exec.Cmd) <-chan error {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started, exited := make(chan error), make(chan error, 1)
	go func() {
		// The process gets the death signal if the thread that started it exits, so this thread waits for the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			exited <- cmd.Wait()
			close(exited)
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		for range exited { // until it is closed
		}
	})
	return exited
}

// get returns the body of an answer.
func (p *prometheus) get(ctx context.Context, path string, values url.Values) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+path+"?"+values.Encode(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, b)
	}
	return b, err
}

// ask calls the API of Prometheus and decodes the data of the answer.
func (p *prometheus) ask(ctx context.Context, call string, values url.Values, into any) error {
	b, err := p.get(ctx, "/api/v1/"+call, values)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, &struct {
		Data any `json:"data"`
	}{into})
}

// sample is a value at a time.
type sample struct{ time, value float64 }

// UnmarshalJSON reads a sample of the API, whose value is a string.
func (s *sample) UnmarshalJSON(b []byte) (err error) {
	var text string
	if err := json.Unmarshal(b, &[]any{&s.time, &text}); err != nil {
		return err
	}
	s.value, err = strconv.ParseFloat(text, 64)
	return err
}

// series are the samples with the same labels.
type series struct {
	Labels map[string]string `json:"metric"`
	Value  sample            `json:"value"`  // of a query
	Values []sample          `json:"values"` // of a range query
}

// query runs a query for the current time.
func (p *prometheus) query(ctx context.Context, expr string) ([]series, error) {
	var data struct{ Result []series }
	err := p.ask(ctx, "query", url.Values{"query": {expr}}, &data)
	return data.Result, err
}

// queryRange runs a query for each scrape since a time.
func (p *prometheus) queryRange(ctx context.Context, expr string, since time.Time) ([]series, error) {
	seconds := func(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }
	var data struct{ Result []series }
	err := p.ask(ctx, "query_range", url.Values{
		"query": {expr}, "start": {seconds(since)}, "end": {seconds(time.Now().Add(scrapeInterval))}, "step": {seconds(time.Unix(0, int64(scrapeInterval)))},
	}, &data)
	return data.Result, err
}

// await waits until Prometheus has scraped a state in which a query has a result.
func (p *prometheus) await(expr string) {
	p.t.Helper()
	testkit.EventuallyIn(p.t, 30*time.Second, "Prometheus has scraped "+expr, func(ctx context.Context) (bool, error) {
		found, err := p.query(ctx, expr)
		return len(found) > 0, err
	})
}

// awaitScrape waits until Prometheus has scraped the current state.
func (p *prometheus) awaitScrape() {
	p.t.Helper()
	p.await(fmt.Sprintf("up == 1 and timestamp(up) > %.3f", float64(time.Now().UnixMilli())/1000))
}

// rule is the state of an alert.
type rule struct {
	Name, State, Health, LastError string
	LastEvaluation                 time.Time
}

// rules returns the states of all alerts.
func (p *prometheus) rules(ctx context.Context) ([]rule, error) {
	var data struct{ Groups []struct{ Rules []rule } }
	err := p.ask(ctx, "rules", nil, &data)
	var all []rule
	for _, g := range data.Groups {
		all = append(all, g.Rules...)
	}
	return all, err
}
