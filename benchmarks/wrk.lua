-- The generator's report as JSON. With arguments (method, tag, body) a request of its own each time: an `@` in the
-- path and in the body becomes the tag and a count, so that each request makes something new.
local count = 0

local function filler(template, tag)
  local before, after = template:match("^(.-)@(.*)$")
  if not before then return function() return template end end
  return function(id) return before .. tag .. id .. after end
end

function init(args)
  local method, tag, body = args[1], args[2], args[3]
  if not method then return end
  local fill_path, fill_body = filler(wrk.path, tag), filler(body, tag)
  wrk.headers["Content-Type"] = "application/json"
  request = function()
    count = count + 1
    local id = string.format("%08d", count)
    return wrk.format(method, fill_path(id), nil, fill_body(id))
  end
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format('\n{"requests": %d, "seconds": %f, "errors": %d, "p50": %f, "p99": %f}\n',
    summary.requests, summary.duration / 1e6,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
