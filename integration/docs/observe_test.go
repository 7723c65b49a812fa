package docs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/typeurl/v2"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// metricsAddress is the metrics address in the documents. A session whose configuration has it has an address of its own.
const metricsAddress = "127.0.0.1:1338"

// metrics returns imagepin's metrics of the node.
func (s *session) metrics([]string) (string, error) {
	req, err := http.NewRequestWithContext(s.Ctx, http.MethodGet, s.Here("http://"+metricsAddress+"/v1/metrics"), nil)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	var ours strings.Builder
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "imagepin_") {
			ours.WriteString(line)
		}
	}
	return ours.String(), err
}

// watch subscribes to the events of pins.
func (s *session) watch([]string) (string, error) {
	s.events, s.eventErrs = s.Client().EventService().Subscribe(s.Ctx, `topic~="^/imagepin/pin/"`)
	return "", nil
}

// event returns the payload of the next event after the step watch with a topic: event drifted.
func (s *session) event(args []string) (string, error) {
	topic := "/imagepin/pin/" + args[0]
	for {
		select {
		case e := <-s.events:
			if e.Topic != topic {
				continue
			}
			payload := &api.PinEvent{}
			if err := typeurl.UnmarshalTo(e.Event, payload); err != nil {
				return "", err
			}
			b, err := json.MarshalIndent(payload, "", "  ")
			return string(b) + "\n", err
		case err := <-s.eventErrs:
			return "", fmt.Errorf("waiting for the event %s: %w", topic, err)
		case <-s.Ctx.Done():
			return "", fmt.Errorf("the event %s was not published", topic)
		}
	}
}

// inspecti returns the first key of an image in its verbose status, as `crictl inspecti` shows it: inspecti REF.
func (s *session) inspecti(args []string) (string, error) {
	resp, err := s.Images().ImageStatus(s.Ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: args[0]}, Verbose: true})
	if err != nil {
		return "", err
	}
	var info struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal([]byte(resp.GetInfo()["imagepin"]), &info); err != nil || len(info.Keys) == 0 {
		return "", fmt.Errorf("the status has no keys: %q, %v", resp.GetInfo()["imagepin"], err)
	}
	var b bytes.Buffer
	err = json.Indent(&b, info.Keys[0], "", "  ")
	return b.String() + "\n", err
}

// subscription has the events of pins since the step watch.
type subscription struct {
	events    <-chan *events.Envelope
	eventErrs <-chan error
}
