import { z } from 'zod'
import type { HttpResponse } from '#services/cli/client/http.ts'
import type { JobsApi } from '#services/cli/client/jobs-api.ts'
import { CommandError, EXIT } from '#services/cli/failure.ts'
import { type Check, type Finding, failed, ok, reasonOf, warned } from '#shared/doctor/check.ts'

const Ready = z.looseObject({
  status: z.string(),
  problems: z.array(z.string()).optional(),
  preparing: z.array(z.string()).optional(),
})

export interface ServiceOptions {
  /** --url or SLUICE_URL is set, so an unreachable service is a failure rather than a warning. */
  readonly isUrlConfigured: boolean
  readonly hasKey: boolean
}

/** Checks that the service is reachable and ready, and that the key is valid. */
export function serviceCheck(api: JobsApi, { isUrlConfigured, hasKey }: ServiceOptions): Check {
  const { url } = api.http
  return {
    name: 'service',
    fix: 'Check --url or SLUICE_URL; another server or a proxy responded.',
    async run() {
      const response = await api.http.send('/readyz').catch((error: unknown) => absence(error, url, isUrlConfigured))
      if ('check' in response) return [response]
      return [await readiness(response, url), await keyFinding(api, hasKey)]
    },
  }
}

async function readiness(response: HttpResponse, url: string): Promise<Finding> {
  const ready = Ready.parse(await response.body.json())
  const preparing = ready.preparing?.length ? `; models being prepared: ${ready.preparing.join(', ')}` : ''
  if (response.statusCode === 200) return ok('service', `ready at ${url}${preparing}`)
  const reason = ready.problems?.join(' ') ?? ready.status
  return warned('service', `${url} is not ready: ${reason}`, 'Check its log and the failed checks above.')
}

function absence(error: unknown, url: string, isUrlConfigured: boolean): Finding {
  if (!(error instanceof CommandError)) throw error
  const message = `cannot reach ${url}: ${reasonOf(error.cause)}`
  if (isUrlConfigured) return failed('service', message, 'Start the service, or correct --url or SLUICE_URL.')
  return warned('service', message, 'Start the service (npm start), or set its address with --url or SLUICE_URL.')
}

async function keyFinding(api: JobsApi, hasKey: boolean): Promise<Finding> {
  if (!hasKey) return warned('key', 'no API key', 'Set SLUICE_API_KEY or --key. To create a key: sluice keys create')
  try {
    const models = await api.models()
    return ok('key', `valid, for ${models.length} ${models.length === 1 ? 'model' : 'models'}`)
  } catch (error) {
    if (!(error instanceof CommandError) || error.exit !== EXIT.refused) throw error
    return failed('key', error.message, error.next ?? 'Create another key: sluice keys create')
  }
}
