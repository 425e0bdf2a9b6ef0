package checkpointdb

import (
	"sync"
)

// maxCachedItems bounds each of a store's two caches, at some 100 to 300 bytes an
// item.
const maxCachedItems = 300_000

// items is the weight of the lists in a cache; messages count by their length.
func (lists content) items() int {
	n := 1
	for kind, items := range lists {
		n += len(items)
		if sectionKind(kind) == sectionConversation {
			for _, item := range items {
				n += len(item) / 100
			}
		}
	}
	return n
}

// cache keeps a value for some of its keys, and forgets any when it is full.
type cache[K comparable, V any] struct {
	values map[K]cached[V]
	weight int
}

type cached[V any] struct {
	value  V
	weight int
}

func (c *cache[K, V]) get(k K) V { return c.values[k].value }

func (c *cache[K, V]) drop(k K) {
	c.weight -= c.values[k].weight
	delete(c.values, k)
}

func (c *cache[K, V]) put(k K, v V, weight int) {
	c.drop(k)
	if weight > maxCachedItems {
		return
	}
	for other := range c.values {
		if c.weight+weight <= maxCachedItems {
			break
		}
		c.drop(other)
	}
	if c.values == nil {
		c.values = map[K]cached[V]{}
	}
	c.values[k] = cached[V]{v, weight}
	c.weight += weight
}

// headCache holds the heads of threads that were written lately, so that the
// next Append need not read what it is compared with. It mirrors the file
// exactly: every change of a chain updates it inside its transaction, and a
// transaction that fails clears it. Only the leader of the commits touches it.
type headCache struct{ cache[threadNumber, *version] }

func (c *headCache) clear() { *c = headCache{} }

func (c *headCache) put(v *version) {
	for kind := range v.sections {
		v.sections[kind].payload = nil // dies with the transaction, and nobody needs it
	}
	c.cache.put(v.thread, v, v.lists.items())
}

// recentCache holds what was appended lately, to spare the next Append checking
// and encoding it again. That is a matter of values alone, so nothing breaks
// when what it holds was deleted since.
type recentCache struct {
	mu sync.Mutex // guards cache
	cache[ThreadID, *encoded]
}

func (c *recentCache) get(thread ThreadID) *encoded {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cache.get(thread)
}

func (c *recentCache) put(thread ThreadID, e *encoded) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cache.put(thread, e, e.lists.items())
}
