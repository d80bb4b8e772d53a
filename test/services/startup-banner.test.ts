import { expect, it } from 'vitest'
import { ROLES, type Role } from '#services/services.ts'
import { greetingOf } from '#services/startup-banner.ts'

const of = (...fetching: readonly Role[]) => {
  const ingress = { port: 8081, createdKey: undefined }
  return greetingOf({ host: '127.0.0.1', sluiceApiKey: 'sk-test' }, ingress, { models: [] }, fetching).join('\n')
}

it.each([
  [undefined, false, 'set to the key that the service was started with'],
  [undefined, true, "  export SLUICE_API_KEY='sk-te$t'\n  curl http://127.0.0.1:8081/v1/chat/completions"],
  ['sk-new', false, 'Your API key, shown only now: sk-new'],
])('the startup banner (created key: %s, on a terminal: %s) contains %j', (createdKey, isTerminal, expected) => {
  const config = { host: '127.0.0.1', sluiceApiKey: createdKey ? undefined : 'sk-te$t' }
  const lines = greetingOf(config, { port: 8081, createdKey }, { models: [] }, [], isTerminal).join('\n')
  expect(lines).toContain(expected)
  if (!isTerminal) expect(lines).not.toContain('sk-te$t')
})

it('the startup banner mentions downloads if the process runs models that are not prepared', () => {
  for (const roles of [ROLES, ['ingress', 'inference'], ['code', 'ingress']] as const) {
    expect(of(...roles)).toContain('The first start downloads')
  }
})

it('the startup banner mentions no downloads if all models of the process are prepared', () => {
  for (const roles of [['ingress'], ['scheduler', 'ingress'], []] as const) {
    expect(of(...roles)).toContain('Sluice listens on http://127.0.0.1:8081')
    expect(of(...roles)).not.toContain('first start downloads')
  }
})
