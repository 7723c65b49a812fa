package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/rest"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/kube"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/seed"
)

// waitInterval is how often seed --wait reads workloads that their controllers have not observed.
const waitInterval = 100 * time.Millisecond

// unlimited returns a configuration without a limit of requests for each second. seed sends one at a time, and a namespace can
// have thousands of workloads.
func unlimited(config *rest.Config) *rest.Config {
	config.QPS = -1
	return config
}

// seedRun is one run of the command seed.
type seedRun struct {
	*seedOptions
	set    seed.Set
	finder *kube.Finder
	seeder *seed.Seeder
	report seed.Report
	errs   []error
	// refused are namespaces whose ImagePins the user must not write.
	refused map[string]bool
}

func (o *seedOptions) newRun(set seed.Set) (*seedRun, error) {
	client, err := o.clientset()
	if err != nil {
		return nil, err
	}
	pins, err := o.pins()
	if err != nil {
		return nil, err
	}
	r := &seedRun{
		seedOptions: o, set: set, finder: kube.NewFinder(client), refused: make(map[string]bool), report: seed.Report{Items: []seed.Item{}},
		seeder: &seed.Seeder{Pins: pins, Force: o.force, Offline: o.dryRun == cmdutil.DryRunClient, DryRun: o.dryRun == cmdutil.DryRunServer},
	}
	switch o.dryRun {
	case cmdutil.DryRunClient:
		r.report.DryRun = "client"
	case cmdutil.DryRunServer:
		r.report.DryRun = "server"
	}
	return r, nil
}

// seed seeds objects, and reports what it did. It goes on after an error, and returns all, with err as the first. With
// --wait, it reads again those that are not observed, until the timeout. So one does not delay the others.
func (r *seedRun) seed(ctx context.Context, objects []*resource.Info, err error) error {
	r.errs = flatten(err)
	single := len(objects) == 1 && err == nil
	waiting, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	for {
		var pending []*resource.Info
		for _, info := range objects {
			err := r.object(ctx, info)
			if r.wait && errors.Is(err, kube.ErrNotObserved) && waiting.Err() == nil {
				pending = append(pending, info)
				continue
			}
			r.fail(info, err, single)
			if ctx.Err() != nil || errors.Is(err, kube.ErrNotServed) {
				return utilerrors.NewAggregate(r.errs)
			}
		}
		if len(pending) == 0 {
			r.report.Sort()
			return utilerrors.NewAggregate(r.errs)
		}
		select {
		case <-time.After(waitInterval):
		case <-waiting.Done():
		}
		objects = r.again(pending, single)
	}
}

// again reads objects again, and returns those that are still there.
func (r *seedRun) again(objects []*resource.Info, single bool) []*resource.Info {
	var there []*resource.Info
	for _, info := range objects {
		if err := info.Get(); err != nil {
			r.fail(info, err, single)
			continue
		}
		there = append(there, info)
	}
	return there
}

// fail keeps the error of an object. With several objects, it names the object.
func (r *seedRun) fail(info *resource.Info, err error, single bool) {
	switch {
	case err == nil:
		return
	case errors.Is(err, kube.ErrNotObserved) && r.wait:
		err = fmt.Errorf("timed out waiting: %w", err)
	case errors.Is(err, kube.ErrNotObserved):
		err = fmt.Errorf("%w: use --wait", err)
	case !single:
		r.errs = append(r.errs, withArgument(infoName(info), err)...)
		return
	}
	r.errs = append(r.errs, flatten(err)...)
}

// object seeds the current revision of an object.
func (r *seedRun) object(ctx context.Context, info *resource.Info) error {
	if r.refused[info.Namespace] {
		return nil
	}
	obj := info.Object.(*unstructured.Unstructured)
	rev, err := r.finder.Current(ctx, obj)
	if errors.Is(err, kube.ErrNoRevision) {
		return r.noRevision(obj)
	}
	if err != nil {
		return err
	}
	if rev.Template == nil {
		return fmt.Errorf("%s: the images of its pods are not known: use kubectl imagepin set", rev)
	}
	images, err := seed.Images(rev.Template)
	if err != nil {
		return err
	}
	return r.revision(ctx, rev, images)
}

// revision seeds the images of a revision.
func (r *seedRun) revision(ctx context.Context, rev *kube.Revision, images []string) error {
	var ref *metav1.OwnerReference
	var errs []error
	for _, image := range images {
		d, ok := r.set[image]
		if !ok {
			r.add(seed.Item{Namespace: rev.Namespace, Owner: rev.Owner, Image: image, Status: seed.NotInLock})
			continue
		}
		if ref == nil {
			found, err := r.finder.Reference(ctx, rev)
			if err != nil {
				return err
			}
			ref = &found
		}
		item, err := r.seeder.Seed(ctx, newPin(rev, *ref, image, d))
		if apierrors.IsForbidden(err) {
			// It would be refused for each ImagePin of the namespace, also by a ResourceQuota.
			r.refused[rev.Namespace] = true
			return err
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r.add(item)
	}
	return utilerrors.NewAggregate(errs)
}

// noRevision reports the images of an object without a revision.
func (r *seedRun) noRevision(obj *unstructured.Unstructured) error {
	template, err := kube.Template(obj)
	if err != nil {
		return err
	}
	images, err := seed.Images(template)
	if err != nil {
		return err
	}
	owner := v1alpha1.Owner{APIVersion: obj.GetAPIVersion(), Kind: obj.GetKind(), Name: obj.GetName(), UID: obj.GetUID()}
	for _, image := range images {
		r.add(seed.Item{Namespace: obj.GetNamespace(), Owner: owner, Image: image, Digest: r.set[image].String(), Status: seed.NoRevision})
	}
	return nil
}

func (r *seedRun) add(item seed.Item) { r.report.Items = append(r.report.Items, item) }
