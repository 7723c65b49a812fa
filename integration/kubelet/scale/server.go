package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	manifests "github.com/imagepin/imagepin/contrib/kubernetes/cluster"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/measure"
)

// server is etcd and the API server that are measured.
type server struct{ *cluster.Cluster }

// install creates the objects of contrib/kubernetes/cluster, and waits until the API server serves ImagePins.
func (s *server) install(ctx context.Context) error {
	for _, name := range []string{"crd.yaml", "admission-policy.yaml", "flowschema.yaml", "rbac.yaml"} {
		f, err := manifests.Manifests.Open(name)
		if err != nil {
			return err
		}
		err = s.Install(ctx, f)
		f.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return s.AwaitImagePins(ctx)
}

func (s *server) createNamespace(ctx context.Context, name string) error {
	return s.Do(ctx, "POST", "/api/v1/namespaces", &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: name}}, nil)
}

// usage is what a part of the benchmark has used.
type usage struct {
	server, etcd, self time.Duration // CPU time; self is that of this process
	peak               float64       // maximum of the resident memory of the API server, in bytes
	rejected           int           // requests that the API server has answered with 429
}

// meter measures the usage since its begin.
type meter struct {
	s     *server
	begin usage
}

func (s *server) meter(ctx context.Context) (*meter, error) {
	if err := measure.ResetPeakRSS(s.ServerPID()); err != nil {
		return nil, err
	}
	m := &meter{s: s}
	rejected, err := s.rejected(ctx)
	if err != nil {
		return nil, err
	}
	m.begin, err = s.used()
	m.begin.rejected = rejected
	return m, err
}

// end returns the usage since the begin.
func (m *meter) end(ctx context.Context) (usage, error) {
	u, err := m.s.used()
	if err != nil {
		return usage{}, err
	}
	if u.rejected, err = m.s.rejected(ctx); err != nil {
		return usage{}, err
	}
	u.server -= m.begin.server
	u.etcd -= m.begin.etcd
	u.self -= m.begin.self
	u.rejected -= m.begin.rejected
	return u, nil
}

// used returns the usage since the start of the processes, without rejected requests.
func (s *server) used() (u usage, err error) {
	for _, of := range []struct {
		pid  int
		into *time.Duration
	}{{s.ServerPID(), &u.server}, {s.EtcdPID(), &u.etcd}, {os.Getpid(), &u.self}} {
		if *of.into, err = measure.CPU(of.pid); err != nil {
			return usage{}, err
		}
	}
	u.peak, err = measure.PeakRSS(s.ServerPID())
	return u, err
}

// rejected returns the number of requests that the API server has answered with 429.
func (s *server) rejected(ctx context.Context) (int, error) {
	resp, err := s.Send(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	n, err := sum(resp.Body, "apiserver_flowcontrol_rejected_requests_total")
	return int(n), err
}

// sum returns the sum of the samples of a metric in the text format of Prometheus. It is 0 if there are none.
func sum(metrics io.Reader, name string) (float64, error) {
	var total float64
	lines := bufio.NewScanner(metrics)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
			continue
		}
		v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s: %w", name, err)
		}
		total += v
	}
	return total, lines.Err()
}
