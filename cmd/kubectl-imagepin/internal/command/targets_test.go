package command

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/kube"
)

func TestEach(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	failed := errors.New("failed")
	for _, tc := range []struct {
		name string
		ctx  context.Context
		args []string
		err  error
		want string
		runs int
	}{
		{"one", t.Context(), []string{"b"}, failed, "failed", 1},
		{"several", t.Context(), []string{"a", "b", "c", "b"}, failed, "b: failed|b: failed", 4},
		{"several errors of one", t.Context(), []string{"b", "c"}, utilerrors.NewAggregate([]error{failed, utilerrors.NewAggregate([]error{failed})}), "b: failed|b: failed", 2},
		{"no error", t.Context(), []string{"b", "c"}, nil, "", 2},
		{"canceled", canceled, []string{"b", "c"}, failed, "b: failed", 1},
		{"without ImagePins", t.Context(), []string{"b", "c"}, kube.ErrNotServed, "b: " + kube.ErrNotServed.Error(), 1},
	} {
		runs := 0
		err := each(tc.ctx, tc.args, func(arg string) error {
			if runs++; arg == "b" {
				return tc.err
			}
			return nil
		})
		if got := strings.Join(messages(err), "|"); got != tc.want || runs != tc.runs || tc.err == nil != (err == nil) {
			t.Errorf("%s: got %q after %d calls, want %q after %d", tc.name, got, runs, tc.want, tc.runs)
		}
	}
}

// messages returns the messages of an error, of which an aggregate has several.
func messages(err error) []string {
	if err == nil {
		return nil
	}
	all := []error{err}
	if several, ok := err.(utilerrors.Aggregate); ok {
		all = several.Errors()
	}
	var messages []string
	for _, err := range all {
		messages = append(messages, err.Error())
	}
	return messages
}

// Commands do for other arguments what they can.
func TestSeveralArguments(t *testing.T) {
	content := httptest.NewServer(ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0))))
	defer content.Close()
	image := strings.TrimPrefix(content.URL, "http://") + "/web:v7"
	pushed := push(t, image)
	pins := pinServer{"web.1": image, "web.2": image + "-none", "web.3": image}
	server := httptest.NewServer(pins)
	defer server.Close()
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("DOCKER_CONFIG", t.TempDir())

	const missing = `web.0: imagepins.imagepin.io "web.0" not found`
	moved := " moved from aaaaaaaaaaaa to " + short(pushed) + "\n"
	for _, tc := range []struct {
		args, out string
		errs      []string // how they start
	}{
		{
			"refresh web.0 web.1 web.2 web.3", "imagepin.imagepin.io/web.1" + moved + "imagepin.imagepin.io/web.3" + moved,
			[]string{missing, "web.2: cannot resolve " + image + "-none"},
		},
		{"get web.0 web.1 -o name", "imagepin.imagepin.io/web.1\n", []string{missing}},
		{"get web.0 web.1 -o jsonpath={.kind}", "List", []string{missing}},
		{"get web.0 web.9", "", []string{missing, "web.9: "}},
		{"rm web.0 web.1", "imagepin.imagepin.io/web.1 deleted from shop namespace\n", []string{missing}},
	} {
		streams, _, out, _ := genericiooptions.NewTestIOStreams()
		cmd := New(streams)
		cmd.SetArgs(append(strings.Fields(tc.args), "--server="+server.URL, "--namespace=shop"))
		errs := messages(cmd.ExecuteContext(t.Context()))
		if out.String() != tc.out || !slices.EqualFunc(errs, tc.errs, strings.HasPrefix) {
			t.Errorf("%s: got %q and the errors %q, want %q and %q", tc.args, out, errs, tc.out, tc.errs)
		}
	}
}

// push pushes an image for a tag, and returns its digest.
func push(t *testing.T, image string) string {
	t.Helper()
	tag, err := name.NewTag(image)
	if err != nil {
		t.Fatal(err)
	}
	index, err := random.Index(10, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(tag, index, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	d, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

// pinServer answers requests for single ImagePins, of which it has the images by name. It stores nothing.
type pinServer map[string]string

func (s pinServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	pin := v1alpha1.ImagePin{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ImagePin"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: path.Base(r.URL.Path)},
	}
	pin.Spec.Image, pin.Spec.Digest = s[pin.Name], digestA
	var answer any = pin
	if pin.Spec.Image == "" {
		w.WriteHeader(http.StatusNotFound)
		status := apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource(v1alpha1.Resource).GroupResource(), pin.Name).Status()
		status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		answer = status
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
