package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/measure"
)

// storedNamespace is the namespace of the ImagePins that fill etcd.
const storedNamespace = "stored"

// database is the size of etcd's database, in bytes.
type database struct {
	file  float64 // of the file
	inUse float64 // without free pages
}

// stored is how much space ImagePins need.
type stored struct {
	pins   int
	before database
	after  database
	rss    [2]float64 // of the API server, before and after
}

// each returns the number of bytes of one ImagePin.
func (s stored) each() float64 { return (s.after.inUse - s.before.inUse) / float64(s.pins) }

// store creates ImagePins of different revisions, each as a node would create it.
func (b *bench) store(ctx context.Context, kube *server) (s stored, err error) {
	b.say("storing %s ImagePins", measure.Thousands(b.sizes.stored))
	s.pins = b.sizes.stored
	if err := kube.createNamespace(ctx, storedNamespace); err != nil {
		return s, err
	}
	if s.before, err = kube.database(ctx); err != nil {
		return s, err
	}
	if s.rss[0], _, err = measure.RSS(kube.ServerPID()); err != nil {
		return s, err
	}
	err = parallel(ctx, s.pins, func(ctx context.Context, i int) error {
		return kube.Do(ctx, "POST", pinsPath(storedNamespace), newPin(i), nil)
	})
	if err != nil {
		return s, err
	}
	if s.after, err = kube.database(ctx); err != nil {
		return s, err
	}
	s.rss[1], _, err = measure.RSS(kube.ServerPID())
	return s, err
}

// newPin returns the ImagePin of a number, with names, a UID and a digest of the usual length.
func newPin(i int) *v1alpha1.ImagePin {
	name := fmt.Sprintf("web-%05d-7d4b9c8f6", i)
	owner := v1alpha1.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name, UID: newUID(2 * i)}
	pod := v1alpha1.Claimer{Node: fmt.Sprintf("node-%05d", i), Pod: name + "-x7k2p", PodUID: newUID(2*i + 1)}
	return &v1alpha1.ImagePin{
		TypeMeta: meta.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ImagePin"},
		ObjectMeta: meta.ObjectMeta{
			Name:            v1alpha1.Name(owner, image),
			OwnerReferences: []meta.OwnerReference{{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: name, UID: owner.UID, BlockOwnerDeletion: new(bool)}},
		},
		Spec: v1alpha1.ImagePinSpec{Image: image, Digest: digestOf(name).String(), Owner: owner, By: &pod},
	}
}

// newUID returns the UID of a number.
func newUID(i int) types.UID { return types.UID(fmt.Sprintf("%08x-7f3a-4b52-9d0c-5e1f2a3b4c5d", i)) }

// database returns the size of the database when it does not grow any more: etcd writes in the background.
func (s *server) database(ctx context.Context) (database, error) {
	last := database{}
	for {
		now, err := s.databaseNow(ctx)
		if err != nil || now == last {
			return now, err
		}
		last = now
		if err := pause(ctx, time.Second); err != nil {
			return database{}, err
		}
	}
}

func (s *server) databaseNow(ctx context.Context) (d database, err error) {
	for name, into := range map[string]*float64{"etcd_mvcc_db_total_size_in_bytes": &d.file, "etcd_mvcc_db_total_size_in_use_in_bytes": &d.inUse} {
		if *into, err = s.etcdMetric(ctx, name); err != nil {
			return d, err
		}
	}
	return d, nil
}

func (s *server) etcdMetric(ctx context.Context, name string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.EtcdURL()+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("etcd's metrics: %s", resp.Status)
	}
	return sum(resp.Body, name)
}
