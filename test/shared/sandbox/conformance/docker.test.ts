/** With `inject('docker')` the daemon is found, or started, before these tests. */
import { describeSandbox } from '../../../support/sandbox/conformance.ts'

// Each run has a container of its own, a second of processor time: asking after each attack would only cost.
describeSandbox('docker', { isAliveAsked: false, each: 12 })
