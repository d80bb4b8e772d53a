import { ChangeProject, ListAudit, ListProjects } from '#schemas/admin/admin.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { changeProject, createProject, limitsAfter } from '#shared/keys/changes.ts'
import { PROJECTS_MAX, type Project, projectIdOf } from '#shared/keys/keys.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { audit } from './audit.ts'
import { authorOf, checkFields, nothingAsked, pageOf, projectObjects, requireQuota } from './keys.ts'

/**
 * GET /v1/admin/projects: projects that an operator created, newest first. A key without a project acts as its own
 * project, which this list leaves out.
 */
export async function listProjects(context: IngressContext, call: Call): Promise<void> {
  refuseUnknown(ListProjects, call.query)
  const { limit, after } = parseBody(ListProjects, { ...call.query }, 'openai')
  const { page, hasMore } = pageOf((await context.keys.fresh()).projects, limit, after)
  const data = await projectObjects(context, page)
  const ends = { first_id: data[0]?.id ?? null, last_id: data.at(-1)?.id ?? null }
  await call.reply.whole({ object: 'list', data, ...ends, has_more: hasMore })
}

export async function getProject(context: IngressContext, call: Call): Promise<void> {
  await sendProject(context, call, await findProject(context, call))
}

export async function createAnyProject(context: IngressContext, call: Call, body: unknown): Promise<void> {
  checkFields(ChangeProject, body)
  const { name, limits = {} } = parseBody(ChangeProject, body, 'openai')
  requireQuota((await context.keys.fresh()).projects.length, PROJECTS_MAX, 'projects')
  const fields = { name: name ?? undefined, limits: limitsAfter({}, limits) }
  const project = await context.keys.change((store) => createProject(store, fields, authorOf(call)))
  audit(context, call, 'create_project', { of_project: project.id })
  call.reply.setHeader('location', `/v1/admin/projects/${project.id}`)
  await sendProject(context, call, project, 201)
}

export async function updateProject(context: IngressContext, call: Call, body: unknown): Promise<void> {
  checkFields(ChangeProject, body)
  const { name, limits } = parseBody(ChangeProject, body, 'openai')
  const before = await findProject(context, call)
  if (name === undefined && limits === undefined) throw nothingAsked()
  const change = {
    ...(name !== undefined && { name: name ?? undefined }),
    ...(limits && { limits: limitsAfter(before.limits, limits) }),
  }
  const project = await context.keys.change((store) => changeProject(store, before.id, change, authorOf(call)))
  audit(context, call, 'update_project', { of_project: project.id })
  await sendProject(context, call, project)
}

export async function listAudit(context: IngressContext, call: Call): Promise<void> {
  refuseUnknown(ListAudit, call.query)
  const { limit } = parseBody(ListAudit, { ...call.query }, 'openai')
  await call.reply.whole({ object: 'list', data: await context.keys.listAudit(limit) })
}

async function sendProject(context: IngressContext, call: Call, project: Project, status = 200): Promise<void> {
  await call.reply.whole((await projectObjects(context, [project]))[0], status)
}

async function findProject({ keys }: IngressContext, call: Call): Promise<Project> {
  const id = String(call.params.id)
  const known = await keys.fresh()
  const made = known.projects.find((project) => project.id === id)
  if (made) return made
  if (known.keys.some((key) => projectIdOf(key) === id)) return { id, created_at: 0, limits: {} }
  const message = `No project '${beginningOf(id, 100)}' exists. GET /v1/admin/projects lists the projects that were created.`
  throw new ServiceError('not_found', message)
}
