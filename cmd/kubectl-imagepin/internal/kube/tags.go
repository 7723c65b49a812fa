package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/retry"
)

// The ConfigMap with the tags that "kubectl imagepin protect" has set, in the namespace kube-system.
const (
	tagsName = "imagepin-protect"
	tagsKey  = "tags"
)

// Tags reads and writes the tags that a cluster has set in registries, as a text in a ConfigMap.
type Tags struct {
	client corev1client.ConfigMapInterface
}

// NewTags returns the Tags of a cluster.
func NewTags(client kubernetes.Interface) *Tags {
	return &Tags{client.CoreV1().ConfigMaps(metav1.NamespaceSystem)}
}

// Read returns the text, or "" if there is none.
func (t *Tags) Read(ctx context.Context) (string, error) {
	c, err := t.client.Get(ctx, tagsName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return c.Data[tagsKey], nil
}

// Update changes the text with change, again if another client was first, unless it stays the same. It creates the ConfigMap if there
// is none.
func (t *Tags) Update(ctx context.Context, change func(string) (string, error)) error {
	again := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	return retry.OnError(retry.DefaultBackoff, again, func() error {
		c, err := t.client.Get(ctx, tagsName, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		if err != nil && !missing {
			return err
		}
		if missing {
			c = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: tagsName, Namespace: metav1.NamespaceSystem}}
		}
		before, had := c.Data[tagsKey]
		text, err := change(before)
		if err != nil || had && text == before {
			return err
		}
		c = c.DeepCopy()
		c.Data = map[string]string{tagsKey: text}
		if missing {
			_, err = t.client.Create(ctx, c, metav1.CreateOptions{FieldManager: FieldManager})
		} else {
			_, err = t.client.Update(ctx, c, metav1.UpdateOptions{FieldManager: FieldManager})
		}
		return err
	})
}
