/** The test setup finds or starts a Docker daemon for every test file that contains `inject('docker')`. */
import { describeSandbox } from '../../../support/sandbox/conformance.ts'

// Each run has its own container. The additional run after each attack is switched off, because it would prove nothing and cost a second of CPU
// time.
describeSandbox('docker', { isAliveAsked: false, each: 12 })
