package benchmarks_test

import "math/rand/v2"

// A keySet is n client addresses in two copies that share no memory, as the
// key of a request shares none with the key that a limiter has stored.
type keySet struct {
	fill []string // in the order in which the limiter first sees them
	walk []string // shuffled, and laid out in that order: reading the next one is cheap, finding its counter is not
}

func newKeySet(n int) keySet {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	fill := addresses(order)
	rand.New(rand.NewPCG(1, 2)).Shuffle(n, func(i, j int) { order[i], order[j] = order[j], order[i] })
	return keySet{fill: fill, walk: addresses(order)}
}

// unseen returns n addresses that are in no keySet of up to seen keys.
func unseen(seen, n int) []string {
	order := make([]int, n)
	for i := range order {
		order[i] = seen + i
	}
	return addresses(order)
}

const addressLen = len("100.100.100.100")

// addresses returns the address of each number, in one piece of memory.
func addresses(numbers []int) []string {
	text := make([]byte, 0, len(numbers)*addressLen)
	for _, n := range numbers {
		text = appendAddress(text, n)
	}
	all := string(text)
	keys := make([]string, len(numbers))
	for i := range keys {
		keys[i] = all[i*addressLen : (i+1)*addressLen]
	}
	return keys
}

// appendAddress writes the n-th IPv4 address among those of four three-digit
// numbers: 15 characters, for which Go allocates 16 bytes. Multiplying by a
// prime scatters neighbours without making two the same.
func appendAddress(dst []byte, n int) []byte {
	const low, choices, prime = 100, 156, 2_654_435_761
	x := uint64(n) * prime % (choices * choices * choices * choices)
	for octet := range 4 {
		if octet > 0 {
			dst = append(dst, '.')
		}
		v := low + x%choices
		x /= choices
		dst = append(dst, byte('0'+v/100), byte('0'+v/10%10), byte('0'+v%10))
	}
	return dst
}

// lazily returns what build returns, once it is first needed. Unlike
// [sync.OnceValue] it lets a benchmark fail inside build; it is for one
// goroutine at a time.
func lazily[T any](build func() T) func() T {
	var value T
	made := false
	return func() T {
		if !made {
			value, made = build(), true
		}
		return value
	}
}
