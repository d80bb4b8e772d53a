/** With `inject('docker')` the daemon is found, or started, before these tests. */
import { describeSandbox } from '../support/sandbox-conformance.ts'
import { isOwn } from '../support/sandbox-corpus.ts'

// A container costs a second of processor time: the whole corpora take minutes.
const isWhole = process.env.CI === 'true'

describeSandbox('docker', { isAliveAsked: false, ...(isWhole ? {} : { corpus: isOwn }) })
