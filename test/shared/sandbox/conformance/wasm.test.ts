import { describeSandbox } from '../../../support/sandbox/conformance.ts'

// Each run has its own interpreter in its own thread. The additional run after each attack is switched off, because it would prove nothing and
// cost half a second of CPU time.
describeSandbox('wasm', { isAliveAsked: false, each: 4 })
