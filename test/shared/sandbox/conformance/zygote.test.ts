import { describeSandbox } from '../../../support/sandbox/conformance.ts'

describeSandbox('zygote')
