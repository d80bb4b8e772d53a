import type { Operations } from '#services/ingress/openapi/operation.ts'
import { ok } from './shared.ts'

/** Endpoints without authentication. The HTTP server answers them before it searches the route table. */
export const SERVICE: Operations = {
  'GET /healthz': {
    id: 'getHealth',
    tag: 'Service',
    summary: 'Check liveness',
    guide: 'monitoring#health-checks-and-metrics',
    answers: ok('The process is running.', 'Health'),
  },
  'GET /health': {
    id: 'getHealthAsVllm',
    tag: 'Service',
    summary: 'Check liveness (the path that vLLM uses)',
    guide: 'monitoring#health-checks-and-metrics',
    answers: ok('The process is running.', 'Health'),
  },
  'GET /readyz': {
    id: 'getReadiness',
    tag: 'Service',
    summary: 'Check readiness',
    guide: 'monitoring#health-checks-and-metrics',
    answers: {
      200: { description: 'The process is ready for requests.', json: ['Ready'] },
      503: { description: 'The process is not ready; `problems` lists the reasons.', json: ['Ready'] },
    },
  },
  'GET /metrics': {
    id: 'getMetrics',
    tag: 'Service',
    summary: 'Get Prometheus metrics',
    description:
      'Requests from other hosts need an API key with the `admin` scope. Disabled if METRICS_PORT serves the metrics on another port.',
    guide: 'monitoring#health-checks-and-metrics',
    answers: { 200: { description: 'Metrics in the Prometheus text format.', media: ['text/plain'] } },
  },
  'GET /openapi.json': {
    id: 'getOpenApi',
    tag: 'Service',
    summary: 'Get the OpenAPI 3.1 document of this API',
    answers: { 200: { description: 'This document.', json: [] } },
  },
}
