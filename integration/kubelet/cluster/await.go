package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Await lists and watches objects until a condition holds for all of them, and returns them. selector is a label selector;
// empty means all objects. If the context ends before, the error has the objects.
func Await[T any, P interface {
	*T
	meta.Object
}](ctx context.Context, c *Client, path, selector string, done func([]T) bool) ([]T, error) {
	w := &watch[T, P]{client: c, path: path, query: url.Values{"labelSelector": {selector}}, objects: map[string]T{}}
	for {
		ok, err := w.until(ctx, done)
		if ok {
			return w.list(), nil
		}
		if ctx.Err() != nil {
			all := w.list()
			for i := range all {
				P(&all[i]).SetManagedFields(nil)
			}
			state, _ := json.MarshalIndent(all, "", " ")
			return nil, fmt.Errorf("%w; the objects are:\n%.6000s", err, state)
		}
		// The API server ends watches, and restarts in some tests.
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// watch is the state of a watch.
type watch[T any, P interface {
	*T
	meta.Object
}] struct {
	client  *Client
	path    string
	query   url.Values
	objects map[string]T
}

func (w *watch[T, P]) list() []T {
	var all []T
	for _, name := range slices.Sorted(maps.Keys(w.objects)) {
		all = append(all, w.objects[name])
	}
	return all
}

// until returns an error if the API server ends the watch.
func (w *watch[T, P]) until(ctx context.Context, done func([]T) bool) (bool, error) {
	var listed struct {
		Metadata meta.ListMeta
		Items    []T
	}
	if err := w.client.Do(ctx, "GET", w.path+"?"+w.query.Encode(), nil, &listed); err != nil {
		return false, err
	}
	clear(w.objects)
	for _, o := range listed.Items {
		w.objects[P(&o).GetName()] = o
	}
	if done(w.list()) {
		return true, nil
	}
	query := maps.Clone(w.query)
	query.Set("watch", "1")
	query.Set("resourceVersion", listed.Metadata.ResourceVersion)
	resp, err := w.client.Send(ctx, "GET", w.path+"?"+query.Encode(), nil)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	events := json.NewDecoder(resp.Body)
	for {
		var e struct {
			Type   string
			Object json.RawMessage
		}
		if err := events.Decode(&e); err != nil {
			return false, errors.Join(context.Cause(ctx), err)
		}
		if e.Type == "ERROR" {
			return false, fmt.Errorf("watch: %s", e.Object)
		}
		var o T
		if err := json.Unmarshal(e.Object, &o); err != nil {
			return false, err
		}
		if name := P(&o).GetName(); e.Type == "DELETED" {
			delete(w.objects, name)
		} else {
			w.objects[name] = o
		}
		if done(w.list()) {
			return true, nil
		}
	}
}
